//! Policy files: what is wrong, where, and the mend; what is refused on disk.

use crate::prelude::*;
use toolhost::manifest::{Code, Severity};
use toolhost::policy::{self, FileProblem, Policies};

const HEAD: &str = "name = \"p\"\nwhy = \"w\"\ntools = [\"a:b\"]\n";

/// text after the head, line, pointer
#[rustfmt::skip]
const REFUSED: &[(&str, usize, &str)] = &[
    ("[filez]\n", 4, "/filez"),
    ("[files]\nreed = []\n", 5, "/files/reed"),
    ("[limits]\nmemoryBytes = 1\n", 5, "/limits/memoryBytes"),
    ("[limits]\ntimeout_ms = 0\n", 5, "/limits/timeout_ms"),
    ("[limits]\ntimeout_ms = 99\n", 5, "/limits/timeout_ms"),
    ("[limits]\ntimeout_ms = inf\n", 5, "/limits/timeout_ms"),
    ("[limits]\nmemory_bytes = 99999999999999999999999999999999999999999999999\n", 5, "/limits/memory_bytes"),
    ("[files]\nread = [{ path = \"./**\" }]\n", 5, "/files/read/0"),
    ("[files]\nread = [{ path = \"./**\", why = \" \" }]\n", 5, "/files/read/0/why"),
    ("[files]\nread = [\n{ path = \"./**\", why = \"w\" },\n{ path = \"../x\", why = \"w\" },\n]\n",
     7, "/files/read/1/path"),
    ("[files]\nread = [{ path = \"~/x\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/a/*.csv\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/a/**/b\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/a/\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/a//b\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/a/./b\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/**\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"/proc/**\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"a\\u0000b\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \"\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = [{ path = \".\", why = \"w\" }]\n", 5, "/files/read/0/path"),
    ("[files]\nread = \"./**\"\n", 5, "/files/read"),
    ("[files]\nread = [\"./**\"]\n", 5, "/files/read/0"),
    ("[files]\nread = [{ path = \"./**\", why = \"w\", mode = 1 }]\n", 5, "/files/read/0/mode"),
    ("files = 3\n", 4, "/files"),
    ("mode = \"narow\"\n", 4, "/mode"),
    ("stderr = \"fail\"\n", 4, "/stderr"),
    ("require = [\"landlock\"]\n", 4, "/require/0"),
    ("folders = []\n", 4, "/folders"),
    ("folders = [\"../x\"]\n", 4, "/folders/0"),
    ("[network]\nhost = []\n", 5, "/network/host"),
    ("[network]\nhosts = [\"example.com\"]\n", 5, "/network/hosts/0"),
    ("[network]\nhosts = [{ host = \"example.com\" }]\n", 5, "/network/hosts/0"),
    ("[network]\nhosts = [{ host = \"x.com\", why = \"w\", port = 1 }]\n", 5, "/network/hosts/0/port"),
    ("[network]\nhosts = [{ host = \"http://x.com\", why = \"w\" }]\n", 5, "/network/hosts/0/host"),
    ("[network]\nhosts = [{ host = \"bücher.de\", why = \"w\" }]\n", 5, "/network/hosts/0/host"),
    ("[network]\nhosts = [{ host = \"a.*.com\", why = \"w\" }]\n", 5, "/network/hosts/0/host"),
    ("[network]\nhosts = [{ host = \"x.com:0\", why = \"w\" }]\n", 5, "/network/hosts/0/host"),
    ("[network]\nhosts = [{ host = \"x.y\", ranges = [\"1.2.3.4\"], why = \"w\" }]\n", 5, "/network/hosts/0/ranges/0"),
    ("[network]\nhosts = [{ host = \"x.y\", ranges = [\"inner\"], why = \"w\" }]\n", 5, "/network/hosts/0/ranges/0"),
    ("[runtimes]\npython = { path = \"python3\", why = \"w\" }\n", 5, "/runtimes/python/path"),
    ("[runtimes]\npython = { path = \"/usr/bin/python3\" }\n", 5, "/runtimes/python"),
    ("[runtimes]\nnode = { path = \"/usr/bin/node\", why = \"w\" }\n", 5, "/runtimes/node"),
    ("[runtimes]\nwasm = { path = \"/x\", why = \"w\" }\n", 5, "/runtimes/wasm"),
    ("[capabilities]\ngrant = [{ name = \"subproces\", why = \"w\" }]\n", 5, "/capabilities/grant/0/name"),
    ("[capabilities]\ngrant = [{ name = \"secret:X\", why = \"w\" }]\n", 5, "/capabilities/grant/0/name"),
    ("[capabilities]\ngrant = [{ name = \"gpu\", why = \"w\" }]\n", 5, "/capabilities/grant/0/name"),
    ("[capabilities]\ngrant = [{ name = \"env:LD_PRELOAD\", why = \"w\" }]\n", 5, "/capabilities/grant/0/name"),
];

#[test]
fn what_is_plain_is_read() {
    let paths =
        ["./**", "**", "/a/**", "a/b.csv", "./a/b", "/srv/..x/y.", "/procs/**", "a b/ü", "selfish", "./self", "x~"];
    let paths = paths.map(|path| format!("[files]\nread = [{{ path = \"{path}\", why = \"w\" }}]\n"));
    let folders = ["a", "a/", "./a/b", "/a/b/", "/proc", "self"].map(|folder| format!("folders = [\"{folder}\"]\n"));
    let words = ["subprocess", "env:TOKEN", "env:MY_PATH"];
    let words = words.map(|word| format!("[capabilities]\ngrant = [{{ name = \"{word}\", why = \"w\" }}]\n"));
    let hosts = [
        "host = \"Example.COM.\"",
        "host = \"*.x.com:8443\"",
        "host = \"*\"",
        "host = \"[2001:4860:4860::8888]:54\"",
        "host = \"x.com\", ranges = [\"10.0.0.0/8\", \"fd00::/8\", \"0.0.0.0/0\"]",
    ];
    let hosts = hosts.map(|host| format!("[network]\nhosts = [{{ {host}, why = \"w\" }}]\n"));
    for text in paths.into_iter().chain(folders).chain(words).chain(hosts) {
        let read = policy::parse(&format!("{HEAD}{text}"), Path::new("x"), false, Path::new("/r"));
        assert!(read.is_ok(), "{text}: {read:?}");
    }
}

/// The published schema refuses them too; `inf` and numbers beyond 64 bits are no JSON.
#[test]
fn bad_policies_are_refused_at_their_place_and_by_the_published_schema() {
    let schema = jsonschema::validator_for(policy::schema()).expect("the schema is a schema");
    let mut not_json = 0;
    for (text, line, pointer) in REFUSED {
        let whole = format!("{HEAD}{text}");
        let problems = policy::parse(&whole, Path::new("x"), false, Path::new("/r")).expect_err(&whole);
        let problem = &problems[0];
        assert_eq!((problem.line, problem.pointer.as_str()), (*line, *pointer), "{text}: {problems:?}");
        assert_eq!((problem.code, problem.severity), (Code::Schema, Severity::Error), "{text}");
        assert!(problem.column > 0 && !problem.message.is_empty(), "{text}");
        match toml::from_str::<toml::Value>(&whole) {
            Ok(value) => assert!(!schema.is_valid(&serde_json::to_value(value).unwrap()), "{text}"),
            Err(_) => not_json += 1,
        }
    }
    assert!(not_json <= 3, "{not_json}");
}

#[test]
fn bad_heads_are_refused() {
    let table: &[(&str, usize, &str, &str)] = &[
        ("why = \"w\"\ntools = [\"a:b\"]\n", 1, "", "`name` is missing"),
        ("name = \"p\"\ntools = [\"a:b\"]\n", 1, "", "`why` is missing"),
        ("name = \"p\"\nwhy = \"\"\ntools = [\"a:b\"]\n", 2, "/why", "blank"),
        ("name = \"p\"\nwhy = \"w\"\n", 1, "/tools", "is missing"),
        ("name = \"p\"\nwhy = \"w\"\ntools = []\n", 3, "/tools", "is empty"),
        ("name = \"p\"\nwhy = \"w\"\ntools = [\"rep*\"]\n", 3, "/tools/0", "not written as it must be"),
        ("name = \"p\"\nwhy = \"w\"\ntools = [\"a:b\", \"a:b\"]\n", 3, "/tools", ""),
        ("name = \"p\"\nwhy = \"w\"\ntools = [\"a:b\"]\nname = \"q\"\n", 4, "", "duplicate key"),
        ("name = \"p\nwhy", 1, "", "not TOML"),
        ("= = =", 1, "", "not TOML"),
    ];
    for (text, line, pointer, word) in table {
        let problems = policy::parse(text, Path::new("x"), false, Path::new("/r")).expect_err(text);
        let found = problems.iter().find(|p| p.pointer == *pointer && p.message.contains(word));
        assert_eq!(found.map(|p| p.line), Some(*line), "{text}: {problems:?}");
    }
}

#[test]
fn a_host_cap_is_for_all_tools_only() {
    for (text, pointer) in [
        ("tools = [\"a:b\"]\n", "/tools"),
        ("folders = [\"x\"]\n", "/folders"),
        ("mode = \"narrow\"\n", "/mode"),
        ("[runtimes]\npython = { path = \"/x\", why = \"w\" }\n", "/runtimes"),
    ] {
        let text = format!("name = \"h\"\nwhy = \"w\"\n{text}");
        let problems = policy::parse(&text, Path::new("x"), true, Path::new("/r")).expect_err(&text);
        assert_eq!(problems[0].pointer, pointer, "{problems:?}");
    }
    assert!(policy::parse("name = \"h\"\nwhy = \"w\"\n", Path::new("x"), true, Path::new("/r")).is_ok());
}

#[test]
fn what_schema_prints_is_what_is_read() {
    let schema = policy::schema();
    let compiled = jsonschema::validator_for(schema).expect("the schema is a schema");
    let mut text = policy::DEFAULT_POLICY.to_owned();
    text.push_str("write = []\n[limits]\n");
    for limit in toolhost::quantity::Limit::ALL {
        let published = &schema["properties"]["limits"]["properties"][limit.policy_name()];
        assert_eq!(published["default"], limit.house_default());
        text.push_str(&format!("{} = {}\n", limit.policy_name(), published["default"]));
    }
    let read = policy::parse(&text, Path::new("x"), false, Path::new("/r")).unwrap_or_else(|p| panic!("{p:?}\n{text}"));
    assert!(!read.is_wider_than_default(), "every default, written out, gives what the default gives");
    let value = serde_json::to_value(toml::from_str::<toml::Value>(&text).unwrap()).unwrap();
    assert!(compiled.is_valid(&value), "{:?}", compiled.iter_errors(&value).map(|e| e.to_string()).collect::<Vec<_>>());
    let default = policy::Policy::built_in();
    assert_eq!((default.files.read.len(), default.files.read[0].text.as_str()), (1, "./**"));
    assert_eq!((default.files.write.len(), default.limits.len()), (0, 0));
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn put(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

fn named(name: &str, tools: &str) -> String {
    format!("name = \"{name}\"\nwhy = \"w\"\ntools = [{tools}]\n")
}

fn faults(path: &Path) -> Vec<FileProblem> {
    Policies::load(path, path).expect_err("should refuse to start")
}

#[test]
fn a_folder_loads_in_order_with_the_default_and_the_cap_and_ignores_other_files() {
    let folder = folder();
    put(folder.path(), "b.policy.toml", &named("b", "\"x:*\""));
    put(folder.path(), "a.policy.toml", &named("a", "\"x:y\""));
    put(folder.path(), "README.md", "hello");
    put(folder.path(), "c.toml", "not even toml");
    let policies = Policies::load(folder.path(), folder.path()).unwrap();
    let names: Vec<&str> = policies.all().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "built-in default"]);
    let notes: Vec<_> = policies.notes().iter().map(|n| n.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(notes, ["README.md", "c.toml"]);
    assert_eq!(policies.governing("z:z", Path::new("/x")).0.name, "built-in default");
    assert!(policies.names_exactly("x:y", Path::new("/x")) && !policies.names_exactly("x:z", Path::new("/x")));
    let one = Policies::load(&folder.path().join("a.policy.toml"), folder.path()).unwrap();
    assert_eq!(one.all().count(), 2, "one file alone");
    put(folder.path(), "default.policy.toml", &named("mine", "\"*\""));
    put(folder.path(), "host.policy.toml", "name = \"cap\"\nwhy = \"w\"\n");
    let policies = Policies::load(folder.path(), folder.path()).unwrap();
    assert_eq!(policies.all().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["a", "b", "mine", "cap"]);
    let reads: Vec<usize> = policies.all().map(|policy| policy.files.read.len()).collect();
    assert_eq!(reads, [1; 4], "the own folder, where none says otherwise");
}

#[test]
fn two_policies_of_one_width_or_name_refuse_to_start_naming_both() {
    for (first, second) in [("\"x:y\"", "\"q:q\", \"x:y\""), ("\"x:*\"", "\"x:*\""), ("\"*\"", "\"*\"")] {
        let folder = folder();
        put(folder.path(), "a.policy.toml", &named("a", first));
        put(folder.path(), "b.policy.toml", &named("b", second));
        let found = faults(folder.path());
        assert_eq!((found.len(), found[0].problem.code, found[0].problem.line), (1, Code::Conflict, 3));
        assert!(found[0].path.ends_with("b.policy.toml") && found[0].problem.message.contains("a.policy.toml"));
    }
    let folder = folder();
    put(folder.path(), "a.policy.toml", &named("same", "\"x:y\""));
    put(folder.path(), "b.policy.toml", &named("same", "\"x:z\""));
    assert!(faults(folder.path())[0].problem.message.contains("a.policy.toml"));
}

#[test]
fn what_others_can_write_is_refused_with_the_command() {
    for mode in [0o664, 0o646, 0o666] {
        let folder = folder();
        put(folder.path(), "a.policy.toml", &named("a", "\"x:y\""));
        fs::set_permissions(folder.path().join("a.policy.toml"), fs::Permissions::from_mode(mode)).unwrap();
        let found = faults(folder.path());
        assert_eq!(found[0].problem.code, Code::Security);
        assert!(found[0].problem.message.contains("chmod go-w"), "{}", found[0]);
    }
    let folder = folder();
    put(folder.path(), "a.policy.toml", &named("a", "\"x:y\""));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(faults(folder.path())[0].problem.code, Code::Security);
}

#[test]
fn links_fifos_folders_giants_and_other_bytes_are_refused_without_waiting() {
    let folder = folder();
    let inside = |name: &str| folder.path().join(name);
    put(folder.path(), "real.txt", &named("a", "\"x:y\""));
    symlink(inside("real.txt"), inside("link.policy.toml")).unwrap();
    symlink(inside("loop.policy.toml"), inside("loop.policy.toml")).unwrap();
    nix::unistd::mkfifo(&inside("fifo.policy.toml"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    fs::create_dir(inside("dir.policy.toml")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(inside("sock.policy.toml")).unwrap();
    put(folder.path(), "big.policy.toml", &" ".repeat(1024 * 1024 + 1));
    fs::write(inside("bytes.policy.toml"), b"name = \"\xff\"\n").unwrap();
    let found = faults(folder.path());
    let names = found.iter().map(|p| p.path.file_name().unwrap().to_str().unwrap().trim_end_matches(".policy.toml"));
    let names: BTreeSet<&str> = names.collect();
    assert_eq!(names, ["big", "bytes", "dir", "fifo", "link", "loop", "sock"].into(), "{found:?}");
    let link = tempfile::tempdir().unwrap();
    symlink(folder.path(), link.path().join("policies")).unwrap();
    assert_eq!(faults(&link.path().join("policies"))[0].problem.code, Code::Security);
    assert_eq!(faults(&folder.path().join("absent"))[0].problem.code, Code::Unreadable);
}

#[test]
fn relative_folders_start_at_the_root() {
    let root = folder();
    let policies = root.path().join("sandbox-policies");
    fs::create_dir(&policies).unwrap();
    fs::set_permissions(&policies, fs::Permissions::from_mode(0o755)).unwrap();
    put(&policies, "a.policy.toml", &(named("a", "\"x:y\"") + "folders = [\"tool-defs/x/\"]\n"));
    let real = root.path().canonicalize().unwrap();
    let loaded = Policies::load(&policies, root.path()).unwrap();
    assert_eq!(loaded.governing("x:y", &real.join("tool-defs/x/y.tool.json")).0.name, "a");
    assert_eq!(loaded.governing("x:y", &real.join("tool-defs/xx/y.tool.json")).0.name, "built-in default");
}

#[test]
fn deep_long_and_crowded_files_answer_quickly() {
    let began = processor_time();
    let million = 1_000_000;
    let crowd: String = (0..60_000).map(|i| format!("k{i} = 1\n")).collect();
    let one_line = format!("{HEAD}folders = [{}]", "\"a\", ".repeat(200_000));
    for text in [
        "[".repeat(million),
        format!("a = {}", "[".repeat(million)),
        format!("a{}", ".a".repeat(million / 2)),
        crowd,
        one_line,
    ] {
        let problems = policy::parse(&text, Path::new("x"), false, Path::new("/")).map_or_else(|p| p.len(), |_| 0);
        assert!(problems <= 100);
    }
    let took = processor_time() - began;
    assert!(took.as_secs() < 20, "{took:?}");
}
