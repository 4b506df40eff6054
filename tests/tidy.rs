//! The rules of the code that can be checked: imports, homes of outside crates, unsafe, sizes, the
//! tables of layers.

use crate::prelude::*;
use toolhost::sandbox;

/// Level of each module, the highest first (docs/internals/ARCHITECTURE.md).
const LEVELS: [(&str, u8); 14] = [
    ("cli", 6),
    ("transport", 5),
    ("service", 4),
    ("executor", 3),
    ("egress", 2),
    ("broker", 2),
    ("packages", 2),
    ("registry", 2),
    ("runtimes", 2),
    ("policy", 1),
    ("manifest", 1),
    ("sandbox", 0),
    ("schemas", 0),
    ("base", 0),
];

/// Outside crates with one home.
const HOMES: [(&str, &[&str]); 22] = [
    ("wasmtime", &["executor/wasm"]),
    ("rmcp", &["transport/mcp"]),
    ("quick_xml", &["transport/action"]),
    ("::landlock", &["sandbox/layers/landlock.rs"]),
    ("clap", &["cli"]),
    ("notify", &["cli/watch.rs"]),
    // wit-component speaks anyhow.
    ("anyhow", &["cli", "executor/wasm/adapt.rs"]),
    // Policies, the operator's own settings, what scripts require, and what clients have.
    ("toml", &["policy", "cli/settings", "cli/mcp", "packages"]),
    ("pep440_rs", &["policy/grammar/versions.rs"]),
    (
        "pep508_rs",
        &["packages/python.rs", "policy/grammar/versions.rs"],
    ),
    ("nodejs_semver", &["policy/grammar/versions.rs"]),
    ("jsonschema", &["manifest", "schemas"]),
    ("jsonschema_regex", &["manifest"]),
    ("regex_automata", &["manifest"]),
    ("lapin", &["broker"]),
    ("pulsar", &["broker"]),
    ("redb", &["service/background/store.rs"]),
    ("opentelemetry", &["service/traces"]),
    ("opentelemetry_sdk", &["service/traces"]),
    ("opentelemetry_otlp", &["service/traces"]),
    ("opentelemetry_http", &["service/traces"]),
    ("aho_corasick", &["base/mask"]),
];

/// Where source files lie, and the module that the files of a crate below are.
const ROOTS: [(&str, &str); 4] = [
    ("src", ""),
    ("crates/toolhost-base/src", "base"),
    ("crates/toolhost-sandbox/src", "sandbox"),
    ("crates/toolhost-schemas/src", "schemas"),
];

/// Every source file: its path below its root, a crate's with the module's name before it, and its
/// text.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for (root, module) in ROOTS {
        let root = repository(root);
        for entry in walkdir::WalkDir::new(&root).sort_by_file_name() {
            let path = entry.unwrap().into_path();
            if path.extension().is_some_and(|x| x == "rs") {
                let place = Path::new(module).join(path.strip_prefix(&root).unwrap());
                found.push((place, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

/// `FILE:LINE: why` of every line of code that breaks a rule.
fn breaches(rule: impl Fn(&Path, &str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let at = |line: usize| format!("{}:{}", path.display(), line + 1);
        found.extend(
            code(&text)
                .filter_map(|(line, text)| Some(format!("{}: {}", at(line), rule(&path, text)?))),
        );
    }
    found
}

/// The module of a file.
fn module(path: &Path) -> &str {
    path.iter()
        .next()
        .and_then(|first| first.to_str())
        .expect("a name")
        .trim_end_matches(".rs")
}

/// Code without comments and without what only tests see.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let product = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    product
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim_start().starts_with("//"))
}

#[test]
fn modules_import_only_from_below() {
    let levels: BTreeMap<&str, u8> = LEVELS.into();
    // Modules of one level know one another only through one below (egress and runtimes through
    // policy).
    let known = ["policy (1) names manifest (1)"];
    let wrong = breaches(|path, line| {
        let own = module(path);
        let level = levels.get(own)?;
        let mut parts =
            line.split("crate::")
                .skip(1)
                .flat_map(|rest| match rest.strip_prefix('{') {
                    Some(group) => group.split([',', '}']).collect::<Vec<_>>(),
                    None => vec![rest],
                });
        parts.find_map(|part| {
            let other = part
                .trim()
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()?;
            let above = *levels
                .get(other)
                .filter(|above| other != own && *above >= level)?;
            let breach = format!("{own} ({level}) names {other} ({above})");
            (!known.contains(&&*breach)).then_some(breach)
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

type Imports = BTreeMap<String, BTreeSet<String>>;

/// The files of a module by their paths (`policy::grammar::area`), each with those that it imports.
fn imports(module: &str) -> Imports {
    let files: BTreeMap<String, String> = sources()
        .iter()
        .map(|(path, text)| {
            let path = path.with_extension("");
            let names = path.iter().filter_map(|name| name.to_str());
            let names: Vec<&str> = names
                .filter(|name| !["mod", "lib"].contains(name))
                .collect();
            let lines: Vec<&str> = code(text).map(|(_, line)| line).collect();
            (names.join("::"), lines.join("\n"))
        })
        .filter(|(name, _)| name.split("::").next() == Some(module))
        .collect();
    files
        .iter()
        .map(|(own, text)| {
            let below = format!("{own}::");
            let children = files.keys().filter_map(|file| file.strip_prefix(&below));
            let starts = children.chain(["crate", "super", "self"]);
            let paths = starts.flat_map(|start| paths(text, &format!("{start}::")));
            let mut found: BTreeSet<String> = paths
                .filter_map(|path| imported(own, &path, &files))
                .collect();
            found.remove(own);
            (own.clone(), found)
        })
        .collect()
}

/// The paths in a text that begin so, those in braces one by one.
fn paths(text: &str, start: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(start) {
        let before = &text[..at];
        let is_name = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        // `pub(in crate::service)` says who may see, and imports nothing.
        if !is_name && !before.ends_with("(in ") {
            expand("", &text[at..], &mut found);
        }
    }
    found
}

fn expand(before: &str, text: &str, found: &mut Vec<String>) {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    let path = format!("{before}{path}");
    let Some(group) = rest.strip_prefix('{').filter(|_| path.ends_with("::")) else {
        found.push(path);
        return;
    };
    let mut start = 0;
    let mut depth = 0;
    for (at, c) in group.char_indices() {
        match c {
            ',' | '}' if depth == 0 => {
                // Nothing stands between the last comma and the brace.
                let one = group[start..at].trim();
                if !one.is_empty() {
                    expand(&path, one, found);
                }
                start = at + 1;
                if c == '}' {
                    return;
                }
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// The file that holds what a path names, seen from the file `own`.
fn imported(own: &str, path: &str, files: &BTreeMap<String, String>) -> Option<String> {
    let mut place: Vec<&str> = own.split("::").collect();
    let is_crate = ROOTS.iter().any(|(_, module)| *module == place[0]);
    for name in path.split("::").filter(|name| *name != "self") {
        match name {
            "crate" => place.truncate(usize::from(is_crate)),
            "super" => _ = place.pop(),
            name => place.push(name),
        }
    }
    while !place.is_empty() && !files.contains_key(&place.join("::")) {
        place.pop();
    }
    Some(place.join("::")).filter(|place| !place.is_empty())
}

/// All files that a file imports, directly or through others.
fn reachable<'i>(from: &str, imports: &'i Imports) -> BTreeSet<&'i str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = imports[from].iter().map(String::as_str).collect();
    while let Some(file) = open.pop() {
        if found.insert(file) {
            open.extend(imports[file].iter().map(String::as_str));
        }
    }
    found
}

#[test]
fn files_of_a_module_form_no_circle() {
    let mut circles = Vec::new();
    for (module, _) in LEVELS {
        let imports = imports(module);
        let has_files = imports.len() > 1;
        assert!(
            imports.values().any(|files| !files.is_empty()) == has_files,
            "{module}"
        );
        let circle = imports
            .keys()
            .filter(|file| reachable(file, &imports).contains(file.as_str()));
        circles.extend(circle.cloned());
    }
    assert!(circles.is_empty(), "in circles: {circles:#?}");
}

/// What may be granted is read without knowing what decides, and each kind of request is decided
/// without the others.
#[test]
fn policy_has_three_floors() {
    const KINDS: [&str; 7] = [
        "capability",
        "files",
        "hosts",
        "limits",
        "packages",
        "secrets",
        "services",
    ];
    let floors = ["policy::grammar", "policy::verdicts", "policy::reports"];
    let kinds = KINDS.map(|kind| format!("policy::verdicts::{kind}"));
    for (file, files) in imports("policy") {
        let floor = floors.iter().position(|floor| file.starts_with(floor));
        let above = floor.map_or(&[][..], |floor| &floors[floor + 1..]);
        let is_wrong = |other: &&String| {
            let is_kind = kinds.contains(&file) || file == "policy::verdicts::ceiling";
            above.iter().any(|above| other.starts_with(above)) || is_kind && kinds.contains(other)
        };
        assert_eq!(files.iter().find(is_wrong), None, "imported by {file}");
    }
}

#[test]
fn outside_crates_have_one_home() {
    let homes = HOMES.map(|(name, home)| (format!("use {name}::"), format!(" {name}::"), home));
    let wrong = breaches(|path, line| {
        let (used, _, home) = homes.iter().find(|(used, named, home)| {
            (line.contains(used) || line.contains(named))
                && !home
                    .iter()
                    .any(|home| path.to_str().unwrap().starts_with(home))
        })?;
        (path != Path::new("main.rs")).then(|| format!("{used} belongs to {home:?}"))
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_has_its_places() {
    let places = [
        "base/messages.rs",
        "sandbox/sys.rs",
        "sandbox/spawn.rs",
        "executor/wasm/trusted_code.rs",
    ];
    let words = ["unsafe {", "unsafe fn", "allow(unsafe_code"];
    let wrong = breaches(|path, line| {
        let allowed = places.contains(&path.to_str().unwrap());
        (!allowed && words.iter().any(|word| line.contains(word)))
            .then(|| "holds unsafe".to_owned())
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_stay_short_and_say_what_they_are() {
    for (path, text) in sources()
        .into_iter()
        .filter(|(path, _)| !path.ends_with("tests.rs"))
    {
        assert!(text.starts_with("//!"), "{} has no header", path.display());
        assert!(
            text.lines().count() <= 1000,
            "{} is usually two things",
            path.display()
        );
    }
}

/// The name that follows one of these words at the start of a line.
fn named_after<'t>(line: &'t str, words: &[&str]) -> Option<&'t str> {
    let line = line
        .strip_prefix("pub ")
        .or_else(|| line.strip_prefix("pub(super) "))
        .unwrap_or(line);
    let rest = words.iter().find_map(|word| line.strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_')
        .find(|name| !name.is_empty())
}

#[test]
fn what_a_type_can_do_stands_in_its_module() {
    let sources = sources();
    let lines = || {
        sources
            .iter()
            .flat_map(|(path, text)| code(text).map(move |(_, line)| (path, line)))
    };
    let kinds = ["struct ", "enum ", "union "];
    let types = lines().filter_map(|(path, line)| Some((named_after(line, &kinds)?, module(path))));
    let types: BTreeSet<(&str, &str)> = types.collect();
    let own = lines().filter(|(_, line)| !line.contains(" for "));
    let own = own.filter_map(|(path, line)| Some((named_after(line, &["impl "])?, path)));
    let strays: Vec<_> = own
        .filter(|(name, path)| !types.contains(&(*name, module(path))))
        .collect();
    assert!(
        types.len() > 300 && strays.is_empty(),
        "{} types; elsewhere: {strays:?}",
        types.len()
    );
}

/// (name, lines) of every function of a formatted file: the closing brace stands below the word
/// that opens it.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some((before, after)) = line.trim_start().split_once("fn ") else {
            continue;
        };
        let words = ["pub", "const", "async", "unsafe", "extern", "\"C\""];
        let head = |word: &str| words.contains(&word) || word.starts_with("pub(");
        if !before.split_whitespace().all(head)
            || before.contains('(') && !before.starts_with("pub(")
        {
            continue;
        }
        let closes =
            |line: &&str| line.starts_with('}') || line.starts_with(';') || line.ends_with(';');
        let body = lines[at..]
            .iter()
            .position(|line| line.ends_with('{'))
            .unwrap_or(0);
        let signature = lines[at..]
            .iter()
            .position(|line| closes(&line.trim_start()))
            .unwrap_or(0);
        if signature < body || line.ends_with('}') {
            continue;
        }
        let end = format!("{}}}", " ".repeat(indent));
        let length = lines[at..]
            .iter()
            .position(|line| *line == end)
            .map_or(1, |length| length + 1);
        let name = after
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
            .unwrap_or_default();
        found.push((name.to_owned(), length));
    }
    found
}

/// (name, parameters) of every function, nested functions too. A parameter in parentheses is a
/// tuple that is taken apart.
fn signatures(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("fn ") {
        let rest = &text[at + 3..];
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_');
        let name = name.into_iter().next().unwrap_or_default();
        let Some(start) = rest.find('(').filter(|_| !name.is_empty()) else {
            continue;
        };
        let mut parameters = Vec::new();
        let mut depth = 0;
        let mut from = start + 1;
        for (at, c) in rest.char_indices().skip(start) {
            match c {
                '(' | '[' | '{' | '<' => depth += 1,
                '>' if rest[..at].ends_with('-') => {}
                ')' | ']' | '}' | '>' => depth -= 1,
                _ => {}
            }
            if depth == 0 || depth == 1 && c == ',' {
                parameters.push(rest[from..at].trim());
                from = at + 1;
            }
            if depth == 0 {
                break;
            }
        }
        found.push((name, parameters));
    }
    found
}

#[test]
fn parameters_are_plain() {
    let read = signatures("fn one<T>((a, b): (T, u8), c: &bool, d: fn(u8, u8) -> bool) {}");
    let parameters = ["(a, b): (T, u8)", "c: &bool", "d: fn(u8, u8) -> bool"];
    assert_eq!(read, [("one", parameters.to_vec())]);
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let product: Vec<&str> = code(&text).map(|(_, line)| line).collect();
        for (name, parameters) in signatures(&product.join("\n")) {
            let is_switch = |parameter: &&&str| parameter.ends_with(": bool");
            if parameters.iter().any(|one| one.starts_with('(')) {
                wrong.push(format!("{}: {name} takes a tuple apart", path.display()));
            }
            if parameters.iter().filter(is_switch).count() > 1 {
                wrong.push(format!("{}: {name} takes two switches", path.display()));
            }
        }
    }
    let units = breaches(|_, line| line.contains("match ()").then(|| "match ()".to_owned()));
    wrong.extend(units);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Two values that are bound at once are read as one; two such lines in a function are packed.
#[test]
fn a_function_binds_one_tuple_at_most() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let lines: Vec<&str> = code(&text).map(|(_, line)| line).collect();
        for function in lines.split(|line| line.trim_start().split(' ').any(|word| word == "fn")) {
            let packed =
                |line: &&&str| line.trim_start().starts_with("let (") && line.contains(" = (");
            if function.iter().filter(packed).count() > 1 {
                wrong.push(format!("{}: {function:#?}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn functions_stay_short() {
    const LONGEST: usize = 100;
    let measured = functions(
        "fn short() {}\nimpl X {\n    pub async fn two(\n        a: u8,\n    ) \
        {\n        a\n    }\n}\n",
    );
    assert_eq!(measured, [("two".to_owned(), 5)]);
    let mut wrong = Vec::new();
    let mut all = 0;
    for (path, text) in sources() {
        for (name, length) in functions(&text) {
            all += 1;
            if length > LONGEST {
                wrong.push(format!("{}: {name} has {length} lines", path.display()));
            }
        }
    }
    assert!(all > 500, "only {all} functions were found");
    assert!(
        wrong.is_empty(),
        "longer than {LONGEST} lines:\n{}",
        wrong.join("\n")
    );
}

/// The table in the code and the table in the documents are one list.
#[test]
fn the_layer_tables_agree() {
    let layers: BTreeSet<&str> = sandbox::LAYERS.iter().map(|row| row.layer.name()).collect();
    assert_eq!(layers.len(), sandbox::LAYERS.len(), "each once");
    let document = fs::read_to_string(repository("docs/SECURITY.md")).unwrap();
    for layer in &layers {
        assert!(
            document.contains(&format!("| `{layer}` |")),
            "{layer} is not in docs/SECURITY.md"
        );
    }
    let alone = fs::read_to_string(repository("crates/toolhost-sandbox/src/tests.rs")).unwrap();
    // view and scratch are mounts of the launcher; the escape suite holds their attacks.
    for layer in layers.iter().filter(|w| !["view", "scratch"].contains(w)) {
        assert!(
            alone.contains(&format!("fn {layer}()")),
            "{layer} is never raised alone"
        );
    }
}
