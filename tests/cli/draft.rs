//! `new --from`: the manifest says what the script says, the tool works, and the script is never run.

use crate::prelude::*;

const RESIZE: &str = r#"from typing import Literal, Optional
LEVEL = 3

def resize(path: str, width: int = 100, mode: Literal["fit", "fill"] = "fit",
           tags: Optional[list[str]] = None, *, level=LEVEL) -> dict:
    """Resizes a picture.

    Keeps its ratio.

    Args:
        path: The picture's
            file.
        width (int): How wide it becomes.
    Returns:
        What was done.
    """
    return {"path": path, "width": width, "mode": mode, "tags": tags, "level": level}

def _helper(options):
    options.add_argument("--headless")
"#;

const COUNT: &str = r#"import argparse, json
KINDS = ("lines", "words")
parser = argparse.ArgumentParser(description="Counts what a text has.")
parser.add_argument("text", help="The text.")
parser.add_argument("more", nargs="*")
parser.add_argument("-n", "--least", type=int, default=1, help="At least so long (%(default)s).")
parser.add_argument("-v", action="store_true")
parser.add_argument("--loud", action="count", default=0)
parser.add_argument("--kind", choices=KINDS, default="words")
parser.add_argument("--no-color", dest="color", action="store_false")
parser.add_argument("--tag", action="append")
parser.add_argument("--many", nargs="+")
if __name__ == "__main__":
    print(json.dumps(vars(parser.parse_args())))
"#;

const CLICK: &str = r#"import click

@click.command()
@click.option("--count", "-c", default=1, type=int, help="How often.")
@click.option("--kind", type=click.Choice(["x", "y"]), required=True)
@click.option("--shout/--no-shout", default=False)
@click.option("--yes", is_flag=True, default=True)
@click.argument("name")
def hello(count, kind, shout, name):
    """Greets somebody."""
"#;

const TYPES: &str = r#"interface Options {
  /** How wide it becomes. */
  width: number;
  mode?: "fit" | "fill";
  tags: string[];
  inner: { a: string };
}

/**
 * Resizes a picture.
 *
 * @param input.tags - Words for it.
 */
export async function resize({ width, mode = "fit", tags, inner }: Options): Promise<object> {
  return { width, mode, tags, inner };
}
"#;

const JSDOC: &str = "/**\n * Adds numbers.\n * @param {object} input\n * @param {number} input.a - The first.\n \
    * @param {number} [input.b] - The second.\n */\nexport const add = async ({ a, b = 2 }) => ({ sum: a + b });\n";

/// Drafts a tool, and returns its manifest.
fn drafted(playground: &Playground, name: &str, file: &str, text: &str) -> Value {
    fs::write(playground.path(file), text).unwrap();
    playground.settle();
    let file = playground.path(file).display().to_string();
    let made = playground.cli(&["new", name, "--from", &file]);
    assert_eq!(made.code, Some(0), "{made:?}");
    playground.settle();
    let manifest = playground.path(&format!("user_scripts/{name}/{name}.tool.json"));
    let mut manifest: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    manifest["said"] = json!(made.text());
    manifest
}

#[test]
fn a_python_function_and_the_options_of_a_command_become_tools_that_work() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let resize = drafted(&playground, "resize", "resize.py", RESIZE);
    assert_eq!(
        resize["description"],
        "Resizes a picture.\n\nKeeps its ratio."
    );
    assert_eq!(
        resize["parameters"],
        json!({"type": "object", "required": ["path"], "additionalProperties": false, "properties": {
            "path": {"type": "string", "description": "The picture's file."},
            "width": {"type": "integer", "default": 100, "description": "How wide it becomes."},
            "mode": {"enum": ["fit", "fill"], "default": "fit"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "level": {"type": "number", "default": 3}}})
    );
    let said = resize["said"].as_str().unwrap();
    assert!(!said.contains("For a model"), "{said}");
    let answer = playground.call("custom:resize", "{\"path\": \"a\"}");
    assert_eq!(answer.out["outputData"]["level"], 3, "{answer:?}");
    let count = drafted(&playground, "count", "count.py", COUNT);
    assert_eq!(count["description"], "Counts what a text has.");
    assert!(
        count["said"]
            .as_str()
            .unwrap()
            .contains("Not taken over: --loud more than once; --many"),
        "{count}"
    );
    let properties = &count["parameters"]["properties"];
    assert_eq!(
        properties["least"],
        json!({"type": "integer", "description": "At least so long (1)."})
    );
    assert_eq!(
        properties["kind"],
        json!({"enum": ["lines", "words"], "description": "(default: words)"})
    );
    let input = json!({"text": "-v", "more": ["b"], "v": true, "no-color": true, "tag": ["t", "-u"], "least": 2});
    let answer = playground.call("custom:count", &input.to_string());
    assert_eq!(
        answer.out["outputData"],
        json!({"text": "-v", "more": ["b"], "least": 2, "v": true, "kind": "words", "loud": 0, "color": false, "tag": ["t", "-u"], "many": null}),
        "{answer:?}"
    );
    // The command that is printed next works, too.
    let said = count["said"].as_str().unwrap();
    let next = said
        .lines()
        .find_map(|line| line.strip_prefix("Next: "))
        .unwrap();
    let next = next.replacen("toolhost", &binary().display().to_string(), 1);
    let mut shell = playground.outside("/bin/sh");
    shell.env("XDG_STATE_HOME", playground.path("state"));
    shell.args(["-c", &format!("{next} --json")]);
    let ended = finish(shell, b"");
    assert_eq!(ended.out["outputData"]["text"], "text", "{ended:?}");
    let click = drafted(&playground, "hello", "hello.py", CLICK);
    assert_eq!(click["description"], "Greets somebody.");
    assert_eq!(click["execution"]["positional"], json!(["name"]));
    assert_eq!(click["parameters"]["required"], json!(["kind", "name"]));
    assert_eq!(
        click["parameters"]["properties"]["shout"],
        json!({"type": "boolean"})
    );
    assert_eq!(
        click["parameters"]["properties"]["kind"],
        json!({"enum": ["x", "y"]})
    );
    let area = "def area(w, h=2, rounded=True):\n    return rounded\n";
    let area = drafted(&playground, "area", "area.py", area);
    let wanted = json!({"w": {}, "h": {"type": "number", "default": 2}, "rounded": {"type": "boolean", "default": true}});
    assert_eq!(area["parameters"]["properties"], wanted);
    // The flag that the script has, also where it is set already.
    let yes = &click["parameters"]["properties"]["yes"];
    assert_eq!(yes["type"], "boolean", "{click}");
    let checked = playground.cli(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn types_and_jsdoc_become_parameters() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    if has("nodejs", 1) {
        let add = drafted(&playground, "add", "add.mjs", JSDOC);
        assert_eq!(add["description"], "Adds numbers.");
        assert_eq!(
            add["parameters"],
            json!({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
                "a": {"type": "number", "description": "The first."},
                "b": {"type": "number", "description": "The second.", "default": 2}}})
        );
        playground.expect("custom:add", "{\"a\": 1}", "ok {\"sum\": 3}");
        // Where no type is written, a default has one: a switch does not arrive as a text, which is true.
        let written = "export function up({ n, upper = true, by = 'x' }) { return upper; }\n";
        let up = drafted(&playground, "up", "up.mjs", written);
        let wanted =
            json!({"n": {}, "upper": {"type": "boolean", "default": true}, "by": {"default": "x"}});
        assert_eq!(up["parameters"]["properties"], wanted);
        let ended = playground.cli(&["call", "custom:up", "n=1", "upper=false", "--json"]);
        assert_eq!(ended.out["outputData"], false, "{ended:?}");
    }
    if has("bun", 1) {
        let resize = drafted(&playground, "size", "size.ts", TYPES);
        assert_eq!(resize["description"], "Resizes a picture.");
        assert_eq!(
            resize["parameters"]["required"],
            json!(["width", "tags", "inner"])
        );
        assert_eq!(
            resize["parameters"]["properties"],
            json!({
                "width": {"type": "number", "description": "How wide it becomes."}, "mode": {"enum": ["fit", "fill"], "default": "fit"},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Words for it."},
                "inner": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}})
        );
        let input = json!({"width": 1, "tags": [], "inner": {"a": "b"}});
        let answer = playground.call("custom:size", &input.to_string());
        assert_eq!(answer.out["outputData"]["mode"], "fit", "{answer:?}");
    }
}

/// What a script has itself is not said to it again: of options that exclude each other, two would be.
#[test]
fn a_command_whose_options_exclude_each_other_can_be_called() {
    const PICK: &str = r#"import argparse, json
parser = argparse.ArgumentParser()
group = parser.add_mutually_exclusive_group()
group.add_argument("--size", type=int, default=1000)
group.add_argument("--name", default="auto", help="100%% of it")
group.add_argument("--auto", action="store_true")
parser.add_argument("files", nargs="+")
parser.add_argument("--secret", help=argparse.SUPPRESS)
parser.add_argument("--rest", nargs=2)
parser.add_argument("--kind", choices="abc", help="of %(prog)s")
for letter in "ab":
    parser.add_argument(f"--{letter}")
print(json.dumps(vars(parser.parse_args())))
"#;
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let pick = drafted(&playground, "pick", "pick.py", PICK);
    let properties = &pick["parameters"]["properties"];
    assert_eq!(
        properties["name"]["description"],
        "100% of it (default: auto)"
    );
    assert!(properties["secret"].is_null(), "{pick}");
    let kind = json!({"enum": ["a", "b", "c"], "description": "of this script"});
    assert_eq!(properties["kind"], kind);
    let said = pick["said"].as_str().unwrap();
    assert!(
        said.contains("--rest") && said.contains("line 12"),
        "{said}"
    );
    // The first try that is printed has one file, which the script requires.
    assert!(said.contains(r#"--input '{"files":["text"]}'"#), "{said}");
    let answer = playground.expect("custom:pick", r#"{"files": ["f"], "size": 7.0}"#, "ok");
    assert_eq!(answer.out["outputData"]["size"], 7, "{answer:?}");
    // Its failure is not explained by a standard input that it does not have.
    let answer = playground.cli(&[
        "call",
        "custom:pick",
        "files=[\"f\"]",
        "size=1",
        "auto=true",
    ]);
    assert!(answer.stderr.contains("not allowed with"), "{answer:?}");
    assert!(!answer.stderr.contains("standard input"), "{answer:?}");
}

/// What of an option cannot be read is named; and what the schema lets pass, the parser does, too.
#[test]
fn an_option_is_read_as_a_whole_or_named_and_positional_words_keep_their_places() {
    const COPY: &str = r#"from argparse import ArgumentParser as Parser, Action
import json
class Own(Action):
    pass
parser = Parser(description="Copies.")
parser.add_argument("files", nargs="*")
parser.add_argument("pair", nargs=2)
parser.add_argument("to")
parser.add_argument("--level", type=int, choices=range(1, 4))
parser.add_argument("--kept", **{"type": int})
parser.add_argument("--own", action=Own)
parser.add_argument("--size", type=int)
if len(parser.prog) > 1000:
    parser.add_mutually_exclusive_group(required=True)
print(json.dumps(vars(parser.parse_args())))
"#;
    const GREET: &str = "from click import command, option as opt, argument, password_option\n\
        @command()\n@opt('--name', prompt=True)\n@opt('--old', hidden=True)\n@password_option()\n\
        @argument('first', required=False)\n@argument('rest', nargs=-1, required=True)\ndef greet(**all):\n    pass\n";
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let copy = drafted(&playground, "copy", "copy.py", COPY);
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let mut pair = texts.clone();
    pair["minItems"] = json!(2);
    pair["maxItems"] = json!(2);
    let properties = json!({"files": texts, "pair": pair, "to": {"type": "string"}, "size": {"type": "integer"}});
    assert_eq!(copy["parameters"]["properties"], properties, "{copy}");
    let said = copy["said"].as_str().unwrap();
    for named in ["--level", "--kept", "--own", "the group of line 14"] {
        assert!(said.contains(named), "{named}: {said}");
    }
    // The printed call has an empty list for what stands in front.
    let input = r#"{"pair":["text","text"],"to":"text","files":[]}"#;
    assert!(said.contains(input), "{said}");
    let answer = playground.expect("custom:copy", input, "ok");
    let read = &answer.out["outputData"];
    assert_eq!(read["pair"], json!(["text", "text"]), "{answer:?}");
    assert_eq!(read["to"], "text", "{answer:?}");
    // A word too many would take the place of the next.
    for input in [
        r#"{"files":[],"pair":["a","b","c"],"to":"d"}"#,
        r#"{"pair":["a","b"],"to":"d"}"#,
    ] {
        let refused = playground.call("custom:copy", input);
        assert_eq!(refused.error().0, "ParameterValidationError", "{refused:?}");
    }
    let greet = drafted(&playground, "greet", "greet.py", GREET);
    let properties = json!({"name": {"type": "string"}, "first": {"type": "string"},
        "rest": {"type": "array", "items": {"type": "string"}, "minItems": 1}});
    assert_eq!(greet["parameters"]["properties"], properties, "{greet}");
    assert_eq!(
        greet["parameters"]["required"],
        json!(["name", "rest", "first"])
    );
    let said = greet["said"].as_str().unwrap();
    assert!(said.contains("password_option of line 5"), "{said}");
}

/// A type of which a part is not known accepts any value, and is named.
#[test]
fn a_type_that_is_read_in_part_refuses_no_call() {
    if !has("bun", 1) {
        return;
    }
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let any =
        json!({"type": "object", "properties": {}, "required": [], "additionalProperties": true});
    let open = |a: Value| json!({"type": "object", "properties": {"a": a}, "required": [], "additionalProperties": true});
    let own = |names: [&str; 2], required: &[&str]| {
        let number = json!({"type": "number"});
        json!({"type": "object", "properties": {names[0]: number, names[1]: number},
            "required": required, "additionalProperties": false})
    };
    let long = (0..12).map(|n| format!("a{n}: A;")).collect::<String>();
    for (at, text, wanted, note) in [
        (
            0,
            "export function run(o: { a: string } & { b: number }) {}",
            Some(any.clone()),
            "the type {",
        ),
        (
            1,
            "interface O extends B { b: string }\nexport function run(o: O) {}",
            Some(any.clone()),
            "the type O",
        ),
        (
            2,
            "type O = { a: string } & { b: number };\nexport function run(o: O) {}",
            Some(any),
            "the type O",
        ),
        (
            3,
            "export function run({ a }: Partial<{ a: string }> = {}) {}",
            Some(open(json!({}))),
            "the type Partial",
        ),
        (
            4,
            "export function run({ a = 1, ...rest }) {}",
            Some(open(json!({"type": "number", "default": 1}))),
            "",
        ),
        (
            5,
            "/** @param {{a: number, b?: number}} p */\nexport function run(p) {}",
            Some(own(["a", "b"], &["a"])),
            "",
        ),
        (
            6,
            "/**\n * @param {number=} o.a\n * @param {number} o.b\n */\nexport function run({ a, b }) {}",
            Some(own(["a", "b"], &["b"])),
            "",
        ),
        (
            7,
            &format!("interface A {{ {long} }}\nexport function run(o: A) {{}}"),
            None,
            "",
        ),
        (
            8,
            "export function run({ constructor, toString }) {}",
            None,
            "",
        ),
        (
            9,
            "export interface O {\n  'a-b': number // it's one\n  b: number\n  done(): void\n}\nexport const run = async <T,>(o: O) => {}",
            Some(
                json!({"type": "object", "properties": {"a-b": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a-b", "b"], "additionalProperties": true}),
            ),
            "the member done(): void",
        ),
        (
            10,
            "/** @param {{a: number, b?: number}} o */\nexport default async function ({ a, b }) { return a; }",
            Some(own(["a", "b"], &["a"])),
            "",
        ),
    ] {
        let name = format!("t{at}");
        let made = drafted(
            &playground,
            &name,
            &format!("{name}.mts"),
            &format!("{text}\n"),
        );
        assert!(made["said"].as_str().unwrap().contains(note), "{made}");
        if let Some(wanted) = wanted {
            assert_eq!(made["parameters"], wanted, "{text}");
        }
    }
    // A function without a name is called, too.
    playground.expect("custom:t10", r#"{"a": 1}"#, "ok");
    let names = playground.path("user_scripts/t8/t8.tool.json");
    assert!(
        fs::read_to_string(names)
            .unwrap()
            .contains("\"toString\": {}")
    );
}

/// It would leave a file, and end whatever imports it.
#[test]
fn the_script_is_never_run() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    fs::create_dir(playground.path("marks")).unwrap();
    for (file, program, runs) in [
        (
            "plants.py",
            PYTHON,
            "import os\nopen(MARK, 'w').close()\nos._exit(7)\ndef plants(a: int):\n    return a\n",
        ),
        (
            "plants.cjs",
            "node",
            "require('fs').writeFileSync(MARK, '');\nprocess.exit(7);\nfunction plants({ a }) {}\nmodule.exports = { plants };\n",
        ),
    ] {
        let Some(program) = found(program) else {
            continue;
        };
        let mark = playground.path(&format!("marks/{file}"));
        let text = runs.replace("MARK", &format!("{:?}", mark.display().to_string()));
        let name = file.replace('.', "-");
        let manifest = drafted(&playground, &name, file, &text);
        assert!(
            manifest["parameters"]["properties"]["a"].is_object(),
            "{manifest}"
        );
        assert!(!mark.exists(), "{file} was run");
        // The control: whoever runs it sees the file, and its end.
        let mut control = Command::new(program);
        control.arg(playground.path(file));
        assert_eq!(control.status().unwrap().code(), Some(7));
        assert!(mark.exists(), "{file}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_and_nothing_is_made() {
    let host = host();
    let deep = format!(
        "def f(a): return {}1{}\n",
        "(".repeat(5000),
        ")".repeat(5000)
    );
    let long = format!("def f(a): pass\n{}", "# x\n".repeat(2_600_000));
    let nested = format!(
        "def f(a: {}int{}): pass\n",
        "list[".repeat(150),
        "]".repeat(150)
    );
    for (file, text, why) in [
        ("deep.py", deep.as_bytes(), ""),
        ("long.py", long.as_bytes(), "larger than"),
        ("nested.py", nested.as_bytes(), ""),
        ("bytes.py", b"def f(a): pass # \xff\n", "not UTF-8"),
        ("broken.py", b"def f(:\n", "line 1"),
        (
            "several.py",
            b"def f(a): pass\ndef g(a): pass\n",
            "it has: f, g",
        ),
        ("none.py", b"print(1)\n", "it has: none"),
        ("argv.py", b"import sys\nprint(sys.argv)\n", "\"input\": \"argv\""),
        ("none.mjs", b"console.log(1)\n", "\"input\": \"argv\""),
        (
            "plus.py",
            b"import argparse\np = argparse.ArgumentParser(prefix_chars='+')\np.add_argument('+x')\n",
            "other characters than -",
        ),
        (
            "pair.py",
            b"import argparse\np = argparse.ArgumentParser()\np.add_argument('--a', nargs=2, required=True)\n",
            "after one flag: use --script",
        ),
        (
            "groups.py",
            b"import argparse\np = argparse.ArgumentParser()\np.add_subparsers()\n",
            "subcommands",
        ),
        (
            "two.mjs",
            b"export function f(a, b) {}\n",
            "takes several arguments",
        ),
        (
            "number.mjs",
            b"export function f(a = 1) {}\n",
            "does not take an object",
        ),
        (
            "texts.mts",
            b"export function f(a: string) {}\n",
            "does not take an object",
        ),
        (
            "named.mjs",
            b"/** @param {string} a */\nexport function f(a) {}\n",
            "does not take an object",
        ),
        (
            "typer.py",
            b"import typer\napp = typer.Typer()\n@app.command()\ndef f(a: str): pass\n",
            "imports typer",
        ),
        (
            "twice.py",
            b"import argparse\np = argparse.ArgumentParser()\np.add_argument('a')\np.add_argument('--a')\n",
            "line 4 adds 'a' once more: use --script",
        ),
        (
            "front.py",
            b"import argparse\np = argparse.ArgumentParser()\np.add_argument('a', nargs=n())\n",
            "line 3: a has a part that is not written plainly: use --script",
        ),
        ("words.txt", b"x", "ending"),
        ("m.wat", b"(module)", "use --script"),
    ] {
        let file = host.put(file, text);
        let (code, _, err) = host.run(&["new", "x", "--from", &file]);
        assert!(code == 2 && err.contains(why), "{file}: {code} {err}");
        assert!(!host.path("user_scripts/x").exists(), "{file}");
    }
    // The control: one function of several.
    let file = host.put("several.py", "def f(a): pass\ndef g(b): pass\n");
    let (code, _, err) = host.run(&["new", "x", "--from", &file, "--entry", "g"]);
    assert_eq!(code, 0, "{err}");
}

/// A filter gets its text by a parameter, and a pipe that nobody reads is told.
#[test]
fn what_a_script_reads_from_its_standard_input_is_a_parameter() {
    const FILTER: &str = "import argparse, sys\np = argparse.ArgumentParser()\n\
        p.add_argument('--least', type=int, default=0)\np.add_argument('more', nargs=argparse.REMAINDER)\n\
        a = p.parse_args()\nprint(len([w for w in sys.stdin.read().split() if len(w) >= a.least]), a.more)\n";
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let filter = drafted(&playground, "filter", "filter.py", FILTER);
    assert_eq!(filter["execution"]["stdin"], "text", "{filter}");
    assert_eq!(filter["parameters"]["properties"]["more"]["type"], "array");
    let call = |words: &[&str], input: &[u8]| {
        let mut host = playground.host();
        host.args([&["call", "custom:filter"][..], words].concat());
        finish(host, input)
    };
    let given = call(&["text=a bb ccc", "least=2"], b"");
    assert_eq!(given.out, "2 []", "{given:?}");
    assert!(!given.stderr.contains("nobody read"), "{given:?}");
    let dropped = call(&["least=2"], b"a bb ccc");
    assert!(
        dropped.stderr.contains("has text that nobody read"),
        "{dropped:?}"
    );
}

#[test]
fn a_script_that_reaches_the_network_is_told_at_once_what_it_lacks() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    fs::write(
        playground.path("get.py"),
        "def get(u):\n    import urllib.request\n",
    )
    .unwrap();
    fs::write(playground.path("add.py"), "def add(a):\n    return a\n").unwrap();
    playground.settle();
    for (name, is_told) in [("get", true), ("add", false)] {
        let file = playground.path(&format!("{name}.py")).display().to_string();
        let made = playground.cli(&["new", name, "--from", &file]);
        let told = format!("allow custom:{name} --host HOST");
        assert_eq!(made.stderr.contains(&told), is_told, "{made:?}");
    }
}
