//! Search: questions in everyday words find their tool among a thousand, a caller sees only its own
//! tools, and a client that is shown two tools calls all others.

use crate::http::{Web, caller, private, served_to, write_callers};
use crate::prelude::*;
use crate::responses::models::read;
use serde_json::Map;
use std::collections::HashMap;
use toolhost::manifest::Manifest;
use toolhost::registry::Tool;
use toolhost::service::search::SearchIndex;

/// How many of the questions must find their tool among the first five (B-012, B-013).
const GATE: f64 = 0.75;

#[derive(serde::Deserialize)]
struct Listed {
    server: String,
    name: String,
    description: String,
    parameters: Vec<String>,
}

#[derive(serde::Deserialize)]
struct Question {
    question: String,
    tool: String,
}

fn data<T: serde::de::DeserializeOwned>(name: &str) -> Vec<T> {
    let file = repository("tests/search").join(name);
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// A tool as the server lists it, or a copy of it by another name.
fn tool(listed: &Listed, prefix: &str) -> Arc<Tool> {
    let parameters = listed
        .parameters
        .iter()
        .map(|name| (name.clone(), json!({})));
    let manifest = made_of(
        "a:b",
        json!({"type": "definition-only"}),
        json!({
            "description": listed.description,
            "parameters": {"type": "object", "properties": Map::from_iter(parameters)},
        }),
    );
    let id = format!("{prefix}{}:{}", listed.server, listed.name);
    let display_name = listed.name.clone();
    Arc::new(Tool::of_request(Manifest {
        id,
        display_name,
        ..manifest
    }))
}

/// Which part of the questions has its tool among the first five.
fn found(index: &SearchIndex, questions: &[Question]) -> f64 {
    let hits = questions.iter().filter(|asked| {
        let hits = index.find(&asked.question, 5, &HashMap::new(), None, |_| true);
        assert!(hits.len() <= 5);
        assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
        assert!(hits.iter().all(|hit| (0.0..=1.0).contains(&hit.score)));
        hits.iter().any(|hit| hit.tool.manifest.id == asked.tool)
    });
    hits.count() as f64 / questions.len() as f64
}

#[test]
fn questions_in_everyday_words_find_their_tool_among_a_thousand() {
    let listed: Vec<Listed> = data("tools.json");
    let originals = listed.iter().map(|listed| tool(listed, ""));
    let copies = listed.iter().map(|listed| tool(listed, "mirror-"));
    let index = SearchIndex::new(originals.chain(copies).take(1000).collect());
    let known = found(&index, &data("questions.json"));
    // No weight was chosen by these, but whether beginnings of words count was.
    let other = found(&index, &data("more-questions.json"));
    println!("first five: {known:.3} of the questions, {other:.3} of the others");
    assert!(known >= GATE, "{known:.3}");
    assert!(other >= GATE, "{other:.3}");
    assert!(
        index
            .find("", 5, &HashMap::new(), None, |_| true)
            .is_empty()
    );
    assert!(
        index
            .find("\u{7f}?!", 5, &HashMap::new(), None, |_| true)
            .is_empty()
    );
}

/// Who copies a tool many times cannot hide it, and what nobody could take leaves its place to others.
#[test]
fn a_tool_stays_findable_beside_copies_and_beside_what_cannot_be_taken() {
    let listed = |name: &str| Listed {
        server: "files".to_owned(),
        name: name.to_owned(),
        description: "Packs files into an archive.".to_owned(),
        parameters: vec!["path".to_owned()],
    };
    let copies = (0..40).map(|n| tool(&listed(&format!("pack-files-archive-{n}")), "evil-"));
    let index = SearchIndex::new(copies.chain([tool(&listed("zip"), "")]).collect());
    let hits = index.find(
        "pack files into an archive",
        1,
        &HashMap::new(),
        None,
        |_| true,
    );
    assert!(hits[0].tool.manifest.id.starts_with("evil-files:"));
    assert!(hits[0].alike.contains(&"files:zip".to_owned()));
    let can_take = |tool: &Tool| tool.manifest.id == "files:zip";
    let hits = index.find(
        "pack files into an archive",
        1,
        &HashMap::new(),
        None,
        can_take,
    );
    assert_eq!(hits[0].tool.manifest.id, "files:zip");
}

/// Fifty tools, one of which resizes pictures, and one that only `ops` may call.
fn crowd(playground: &Playground) {
    let echo = "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n";
    let define = |id: &str, description: &str, more: Value| {
        let mut all = json!({"description": description, "parameters": {"type": "object",
            "properties": {"file": {"type": "string"}, "width": {"type": "integer", "minimum": 1}},
            "required": ["file", "width"]}});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let name = id.replace(':', "_");
        playground.tool_at(id, "python", &format!("{name}/main.py"), echo, all);
    };
    define(
        "image:scale",
        "Changes the size of an image file.",
        json!({}),
    );
    define(
        "ops:resize",
        "Resizes a picture on the disk of the server.",
        json!({}),
    );
    for n in 0..48 {
        define(
            &format!("misc:report-{n}"),
            &format!("Writes report number {n} of the month."),
            json!({}),
        );
    }
}

fn searched(web: &Web, header: &str, query: &str) -> Vec<String> {
    let reply = web.get(&format!("/v1/tools?query={query}"), &[header]);
    let tools = reply.json()["tools"].as_array().unwrap().clone();
    tools
        .iter()
        .map(|tool| tool["toolId"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_caller_finds_its_own_tools_alone_and_the_same_way_everywhere() {
    let (playground, web, [agent, boss, few]) = served_to(["agent", "boss", "few"], |playground| {
        crowd(playground);
        let own = caller("agent", "").replace("[\"*\"]", "[\"image:*\", \"misc:*\", \"core:*\"]");
        let boss = caller("boss", "act_as = [\"few\"]\n");
        write_callers(
            playground,
            &(own + &boss + &caller("few", "calls_per_minute = 2\n")),
        );
    });
    assert_eq!(
        searched(&web, &boss, "resize+a+picture")[..2],
        ["ops:resize", "image:scale"]
    );
    assert_eq!(searched(&web, &agent, "resize+picture"), ["image:scale"]);
    assert_eq!(searched(&web, &agent, ""), Vec::<String>::new());
    let answer = web.call(
        "core:search-tools",
        &json!({"query": "resize picture", "limit": 3}),
        &[&agent],
    );
    let hit = &answer.json()["outputData"]["tools"];
    assert_eq!(hit.as_array().unwrap().len(), 1, "{hit}");
    assert_eq!(hit[0]["toolId"], "image:scale");
    assert_eq!(hit[0]["example"], json!({"file": "text", "width": 1}));
    let loaded = |format: &str| {
        let path = format!("/v1/tools?query=resize+picture&format={format}");
        web.get(&path, &[&agent]).json()
    };
    let reference = json!([{"type": "tool_reference", "tool_name": "image__scale"}]);
    assert_eq!(loaded("anthropic"), reference);
    assert_eq!(
        loaded("openai-responses")["tools"][0]["name"],
        "image__scale"
    );
    let reply = web.get("/v1/tools?query=%ff", &[&agent]);
    assert!(
        reply.status == 400 && reply.body.contains("The query is not UTF-8."),
        "{reply:?}"
    );
    web.get("/v1/tools?query=a&limit=0", &[&agent])
        .is(400, "ParameterValidationError: limit: from 1 to 50");
    // A search counts as a call does, whoever sends it; a list does not.
    let search = |more: &str, header: &str| {
        let path = format!("/v1/tools?query=picture{more}");
        web.get(&path, &[header]).status
    };
    assert_eq!(web.get("/v1/tools", &[&few]).status, 200);
    assert_eq!([search("", &few), search("&as=few", &boss)], [200, 200]);
    assert_eq!([search("", &few), search("&as=few", &boss)], [429, 429]);
    let call = json!({"query": "picture"});
    web.call("core:search-tools", &call, &[&few])
        .is(429, "RateLimitError");
    assert_eq!(search("", &boss), 200);
    let shown = playground.cli(&[
        "search", "resize", "a", "picture", "--caller", "agent", "--json",
    ]);
    assert!(shown.text().contains("image:scale"), "{}", shown.text());
}

#[test]
fn a_word_is_found_however_its_letters_were_typed() {
    let host = host();
    let script = script("size/s.py", "python");
    host.put("user_scripts/size/s.py", "");
    let more = json!({"description": "Ändert die Größe."});
    let all = manifest("custom:size", script, more);
    host.put("user_scripts/size/size.tool.json", all.to_string());
    for (question, is_hit) in [
        ("Größe", true),
        ("gro\u{308}\u{df}e", true),
        ("GRÖSSE", true),
        ("GRÖẞE", true),
        ("A\u{308}NDERT", true),
        ("Grütze", false),
    ] {
        let (_, out, err) = host.run(&["search", question, "--json"]);
        assert_eq!(
            out.contains("custom:size"),
            is_hit,
            "{question}: {out}{err}"
        );
    }
}

#[test]
fn a_lazy_client_sees_two_tools_and_calls_all_others_by_their_own_rights() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    crowd(&playground);
    playground.policy(
        "agree",
        "image:scale",
        "confirm = \"a person agrees to pictures\"\n",
    );
    playground.settle();
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--lazy"]);
    let mut server = Server::with(host);
    assert_eq!(server.names(), ["core__call-tool", "core__search-tools"]);
    let given = json!({"file": "a.png", "width": 3});
    let call = |tool: &str| json!({"tool": tool, "arguments": given});
    let answer = server.called("core:call-tool", call("misc:report-7"));
    assert!(words(&answer).contains("a.png"), "{answer}");
    // Neither the arguments' schema nor a person is passed over.
    let wrong = json!({"tool": "misc:report-7", "arguments": {"file": 3}});
    let wrong = server.called("core:call-tool", wrong);
    assert!(
        words(&wrong).contains("ParameterValidationError"),
        "{wrong}"
    );
    let refused = server.called("core:call-tool", call("image:scale"));
    assert!(words(&refused).contains("image__scale failed"), "{refused}");
    assert!(!words(&refused).contains("a.png"), "{refused}");
    // As some models write it.
    let text = json!({"tool": "misc__report-7", "arguments": given.to_string()});
    let answer = server.called("core:call-tool", text);
    assert!(words(&answer).contains("a.png"), "{answer}");
    let lost = server.called("core:call-tool", json!({"arguments": {}}));
    assert!(words(&lost).contains("ParameterValidationError"), "{lost}");
    let search =
        |server: &mut Server| server.asked("tools/list", json!({}))["result"]["tools"][1].clone();
    let whole = search(&mut server);
    assert!(whole["outputSchema"].is_object(), "{whole}");
    drop(server);
    let records = playground.records();
    let tools: Vec<&Value> = records.iter().map(|record| &record["tool"]).collect();
    assert_eq!(
        tools,
        [
            "misc:report-7",
            "misc:report-7",
            "image:scale",
            "misc:report-7",
            "core:call-tool"
        ]
    );
    let mut host = playground.host();
    host.args(["serve", "--stdio", "--lazy", "--lean"]);
    let mut server = Server::with(host);
    let lean = search(&mut server);
    assert_eq!(lean["name"], "core__search-tools", "{lean}");
    assert!(lean["outputSchema"].is_null(), "{lean}");
    // The list of this client is not that of all names.
    let unknown = json!({"tool": "zz:qqq", "arguments": {}});
    let unknown = server.called("core:call-tool", unknown);
    let told = words(&unknown);
    assert!(
        told.contains("Unknown tool 'zz:qqq'. No known name is like it.")
            && told.contains("search for one if the list has a tool for that"),
        "{unknown}"
    );
}

/// Elsewhere a call names its tool itself: in code that is what it was granted, and over HTTP what its
/// client knows of the tool.
#[test]
fn only_mcp_clients_name_a_tool_in_arguments() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    crowd(&playground);
    let script = "import json, toolhost\ntry:\n    toolhost.call('core:call-tool', {'tool': \
        'misc:report-7', 'arguments': {'file': 'a', 'width': 1}})\n    print('\"called\"')\n\
        except toolhost.ToolError as e:\n    print(json.dumps(e.type))\n";
    let calls = json!({"calls": ["core:call-tool", "misc:report-7"]});
    playground.tool("indirect", "python", script, calls);
    let allowed = ["core:call-tool", "misc:report-7"].map(|id| {
        let why = "a test";
        format!("{{ tool = \"{id}\", why = \"{why}\" }}")
    });
    let allowed = format!("[calls]\nallow = [{}]\n", allowed.join(", "));
    playground.policy("indirect", "esc:indirect", &allowed);
    playground.settle();
    let named = json!({"tool": "misc:report-7", "arguments": {"file": "a.png", "width": 2}});
    let ended = playground.cli(&["call", "core:call-tool", "--input", &named.to_string()]);
    assert!(ended.stderr.contains("CapabilityError"), "{ended:?}");
    playground.expect("esc:indirect", "{}", "ok \"CapabilityError\"");
}

#[test]
fn usage_is_kept_and_orders_equal_hits_for_its_caller() {
    let (playground, web, [agent, boss]) = served_to(["agent", "boss"], |playground| {
        let script = "import json, sys\nprint(json.dumps(json.load(sys.stdin)['n'] / 1))\n";
        for id in ["bab:halve", "bac:halve"] {
            let more = json!({"description": format!("Halves a number, says {}.", &id[..3])});
            let folder = format!("{}/main.py", &id[..3]);
            playground.tool_at(id, "python", &folder, script, more);
        }
        write_callers(playground, &(caller("agent", "") + &caller("boss", "")));
    });
    let first = |header: &str| searched(&web, header, "halve+number")[0].clone();
    for _ in 0..3 {
        web.call("bab:halve", &json!({"n": "x"}), &[&agent]);
        web.call("bac:halve", &json!({"n": 4}), &[&agent]);
    }
    // What another caller's calls came to orders nothing for this one.
    assert_eq!([first(&agent), first(&boss)], ["bac:halve", "bab:halve"]);
    drop(web);
    let listed = |more: &[&str]| {
        let words = [
            &["list", "--usage", "--json", "--namespace", "bab"][..],
            more,
        ]
        .concat();
        let ended = playground.cli(&words);
        serde_json::from_str::<Value>(&ended.text()).unwrap()[0]["usage"].clone()
    };
    let all = listed(&["--caller", "agent"]);
    assert_eq!([&all["calls"], &all["failures"]], [3, 3], "{all}");
    assert_eq!(all["errors"], json!([{"type": "ScriptError", "calls": 3}]));
    assert!(all["p50Ms"].is_u64() && all["last"].is_string(), "{all}");
    assert_eq!(listed(&["--caller", "boss"])["calls"], 0);
    // Another root of this user has a tool of the same name, and the same log.
    let script = playground.path("user_scripts/bab");
    let other = playground.path("other/tool-defs/bab");
    fs::create_dir_all(&other).unwrap();
    for file in fs::read_dir(script).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), other.join(file.file_name())).unwrap();
    }
    let mut host = playground.outside(binary().to_str().unwrap());
    host.args(["--root", playground.path("other").to_str().unwrap()]);
    let log = playground.path("state/audit.jsonl");
    host.args(["--audit-log", log.to_str().unwrap()]);
    host.args(["list", "--usage", "--json", "--namespace", "bab"]);
    let shown = finish(host, b"").out;
    assert_eq!(shown[0]["usage"]["calls"], 0, "{shown}");
    let table = playground
        .cli(&["list", "--usage", "--caller", "agent"])
        .text();
    assert!(table.contains("ScriptError"), "{table}");
    let found = ["search", "halve", "number", "--caller", "agent"];
    assert!(playground.cli(&found).text().contains("bac:halve"));
}

#[test]
fn an_edit_changes_one_exported_unit() {
    let host = host();
    let parameters = |words: &str| {
        json!({"parameters": {"type": "object",
            "properties": {"file": {"type": "string", "description": words}}}, "tags": ["t"]})
    };
    let exported = || {
        let (code, text, _) = host.run(&["export"]);
        assert_eq!(code, 0, "{text}");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    host.tool("a:sum", parameters("the old file"));
    host.tool("a:other", json!({}));
    let before = exported();
    host.tool("a:sum", parameters("the new file"));
    let after = exported();
    let changed: Vec<&String> = after.iter().filter(|it| !before.contains(it)).collect();
    assert_eq!((changed.len(), after.len()), (1, before.len()));
    let unit: Value = serde_json::from_str(changed[0]).unwrap();
    assert!(
        unit["text"]
            .as_str()
            .unwrap()
            .contains("file: the new file")
    );
    assert_eq!(unit["extension"]["toolId"], "a:sum");
    assert_eq!(unit["extension"]["handler"]["type"], "external-script");
    assert_eq!(unit["tags"], json!(["t"]));
}

/// A stand-in for an embedding server: what is about heat is near to what is about heat. What it
/// heard, and whether it fails.
#[derive(Clone, Default)]
struct Embeddings {
    heard: Arc<Mutex<Vec<(String, Value)>>>,
    fails: Arc<std::sync::atomic::AtomicBool>,
}

impl Embeddings {
    /// Its port.
    fn serve(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = self.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let Some(asked) = read(&stream) else { continue };
                let texts = asked.1["input"].as_array().unwrap().clone();
                own.heard.lock().unwrap().push(asked);
                let vectors = texts.iter().enumerate().map(|(index, text)| {
                    let text = text.as_str().unwrap();
                    let is_hot = text.contains("hot") || text.contains("thermometer");
                    let vector = if is_hot { [2.0, 0.1] } else { [0.0, 3.0] };
                    json!({"index": index, "embedding": vector})
                });
                let body = json!({"data": vectors.collect::<Vec<_>>()}).to_string();
                let status = match own.fails.load(std::sync::atomic::Ordering::SeqCst) {
                    true => "302 Found\r\nlocation: /elsewhere",
                    false => "200 OK",
                };
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes());
                // The body comes later, as from a server that is far away.
                std::thread::sleep(Duration::from_millis(50));
                let _ = stream.write_all(body.as_bytes());
            }
        });
        port
    }
}

#[test]
fn an_embedding_server_orders_hits_and_words_do_where_it_fails() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let echo = "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n";
    for (name, description) in [
        ("room", "Reads the thermometer."),
        ("paper", "Prints a page."),
    ] {
        playground.tool(name, "python", echo, json!({"description": description}));
    }
    playground.settle();
    private(&playground, "state/search.key", "sk-test-0123456789abcdef");
    let server = Embeddings::default();
    let config = format!(
        "[search]\nurl = \"http://127.0.0.1:{}/v1\"\nname = \"tiny\"\nkey = \"file:search.key\"\n\
         ranges = [\"127.0.0.0/8\"]\n",
        server.serve()
    );
    let config = private(&playground, "state/config.toml", &config);
    let web = Web::start(&playground, &["--config", &config]);
    web.call("esc:room", &json!({"an-argument": "of-a-call"}), &[]);
    for query in ["is%20it%20hot", "how%20hot"] {
        assert_eq!(searched(&web, "X-A: b", query)[0], "esc:room");
    }
    let shown = playground.cli(&["--config", &config, "search", "is", "it", "hot"]);
    assert!(shown.text().contains("esc:room"), "{shown:?}");
    let heard = server.heard.lock().unwrap().clone();
    assert!(
        heard[0].0.starts_with("post /v1/embeddings "),
        "{}",
        heard[0].0
    );
    assert!(heard[0].0.contains("bearer sk-test-"), "{}", heard[0].0);
    assert_eq!(heard[1].1, json!({"model": "tiny", "input": ["how hot"]}));
    assert!(!format!("{heard:?}").contains("of-a-call"), "{heard:?}");

    server
        .fails
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let found = web.get("/v1/tools?query=print%20a%20page", &[]).json();
    assert_eq!(found["tools"][0]["toolId"], "esc:paper", "{found}");
    assert!(
        found["note"].as_str().unwrap().contains("by words"),
        "{found}"
    );
    let asked = server.heard.lock().unwrap().len();
    let by_words = searched(&web, "X-A: b", "is%20it%20hot");
    assert!(!by_words.contains(&"esc:room".to_owned()), "{by_words:?}");
    assert_eq!(
        server.heard.lock().unwrap().len(),
        asked,
        "it is left alone"
    );
}

/// A model of four words in two directions: heat, and paper.
fn write_model(folder: &Path) {
    let rows: [f32; 10] = [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    let header = json!({"embeddings": {"dtype": "F32", "shape": [5, 2], "data_offsets": [0, 40]}});
    let header = header.to_string().into_bytes();
    let numbers = rows.iter().flat_map(|row| row.to_le_bytes());
    let length = (header.len() as u64).to_le_bytes();
    let model: Vec<u8> = length.into_iter().chain(header).chain(numbers).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "post_processor": null, "decoder": null,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "hot": 1, "thermometer": 2, "paper": 3, "page": 4}},
    });
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("model.safetensors"), model).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.join("config.json"), "{\"normalize\": true}").unwrap();
}

#[test]
fn a_model_in_a_folder_orders_hits_in_a_build_that_reads_one() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (name, description) in [
        ("room", "Reads the thermometer."),
        ("sheet", "Prints a page."),
    ] {
        playground.tool(
            name,
            "python",
            "print(1)\n",
            json!({"description": description}),
        );
    }
    playground.settle();
    write_model(&playground.path("state/model"));
    let config = private(
        &playground,
        "state/config.toml",
        "[search]\nmodel = \"model\"\n",
    );
    let found = |words: &str| playground.cli(&["--config", &config, "search", "--json", words]);
    let hot = found("hot");
    if !cfg!(feature = "static-model") {
        assert!(hot.stderr.contains("--features static-model"), "{hot:?}");
        return;
    }
    assert_eq!(hot.out["tools"][0]["toolId"], "esc:room", "{hot:?}");
    let paper = found("paper");
    assert_eq!(paper.out["tools"][0]["toolId"], "esc:sheet", "{paper:?}");
    let unknown = found("prints");
    assert_eq!(
        unknown.out["tools"][0]["toolId"], "esc:sheet",
        "{unknown:?}"
    );
    assert!(unknown.stderr.contains("by words"), "{unknown:?}");
    let both = private(
        &playground,
        "state/both.toml",
        "[search]\nmodel = \"model\"\nname = \"x\"\n",
    );
    let refused = playground.cli(&["--config", &both, "search", "hot"]);
    assert!(
        refused.stderr.contains("or the folder `model` alone"),
        "{refused:?}"
    );
    fs::write(playground.path("state/model/model.safetensors"), "no model").unwrap();
    let refused = found("hot");
    assert!(
        refused.stderr.contains("cannot be read as a model"),
        "{refused:?}"
    );
}

#[test]
fn lean_lists_are_shorter_and_say_the_same_tools() {
    let host = host();
    let long = "It sums numbers. ".repeat(60);
    host.tool(
        "a:sum",
        json!({"description": long, "output": {"type": "object"}}),
    );
    let (_, whole, _) = host.run(&["list", "--bytes"]);
    assert!(whole.contains("a:sum") && whole.contains("all"), "{whole}");
    let deferred = host
        .run(&[
            "list",
            "--format",
            "anthropic",
            "--defer",
            "--namespace",
            "a",
        ])
        .1;
    let deferred: Value = serde_json::from_str(&deferred).unwrap();
    assert_eq!(deferred[0]["defer_loading"], true, "{deferred}");
    let lists = [&["serve", "--stdio"][..], &["serve", "--stdio", "--lean"]].map(|arguments| {
        let mut command = host.process();
        command.args(arguments);
        let mut server = Server::with(command);
        let listed = server.asked("tools/list", json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap().clone();
        tools
            .into_iter()
            .find(|tool| tool["name"] == "a__sum")
            .unwrap()
    });
    let [whole, lean] = lists;
    let short = lean["description"].as_str().unwrap();
    assert!(short.ends_with('.') && short.len() <= 300, "{short}");
    assert!(whole["description"].as_str().unwrap().len() > 900);
    assert!(whole["outputSchema"].is_object() && lean["outputSchema"].is_null());
    assert_eq!(whole["inputSchema"], lean["inputSchema"]);
}
