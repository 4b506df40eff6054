//! `PUT /v1/scripts/{path}`: an operator adds a script, and replaces nothing.

use super::{Reply, Web, served_to};
use crate::prelude::*;

const SCRIPT: &str = "print('uploaded')\n";
const BYTES: &str = "Content-Type: application/octet-stream";

fn put(web: &Web, path: &str, header: &str, body: &str) -> Reply {
    let path = format!("/v1/scripts/{path}");
    web.ask("PUT", &path, &[header, BYTES], body)
}

/// All files below the folder of scripts.
fn files(playground: &Playground) -> Vec<PathBuf> {
    let all = walkdir::WalkDir::new(playground.path("user_scripts")).sort_by_file_name();
    all.into_iter().map(|it| it.unwrap().into_path()).collect()
}

#[test]
fn an_operator_uploads_new_scripts_and_nothing_else() {
    let (playground, web, [ops, agent]) = served_to(["ops!", "agent"], |playground| {
        playground.tool("one", "python", "print(1)\n", json!({}));
        playground.allow_builtin_tools();
        fs::create_dir_all(playground.path("user_scripts/free")).unwrap();
        fs::create_dir_all(playground.path("user_scripts/lib")).unwrap();
        let reads = json!({"securityContext": {"fileAccess": {"allowRead": ["base:lib/**"]}}});
        playground.tool("reads", "python", "print(1)\n", reads);
        let lib = playground.path("user_scripts/lib/**");
        playground.allow("reads", "esc:reads", &[lib.to_str().unwrap()], &[]);
        fs::write(playground.path("user_scripts/free/old.py"), "print(1)\n").unwrap();
        symlink("free", playground.path("user_scripts/link")).unwrap();
    });
    let before = files(&playground);
    put(&web, "free/new.py", &agent, SCRIPT).is(403, "AuthorizationError: operators");
    for (path, wanted) in [
        ("free/old.py", "a file of this name is there"),
        ("one/main.py", "in the folder of a tool"),
        ("one/json.py", "in the folder of a tool"),
        ("link/new.py", "through a link"),
        ("away/new.py", "its folder is not there"),
        ("lib/json.py", "esc:reads@1.0.0 reads what lies there"),
        ("free/new.tool.json", "does not end as that of a script"),
        ("free/.new.py", "hidden files"),
        ("free/%2e%2e/new.py", "upwards"),
        ("..%2Fnew.py", "upwards"),
        ("%2Fnew.py", "relative"),
        ("free%5Cnew.py", "backslash"),
        ("free/n%00w.py", "control"),
    ] {
        let reply = put(&web, path, &ops, SCRIPT);
        assert_eq!(reply.status, 403, "{path}: {}", reply.body);
        assert!(reply.body.contains(wanted), "{path}: {}", reply.body);
    }
    let json = web.ask("PUT", "/v1/scripts/free/new.py", &[&ops], "{}");
    json.is(415, "ParameterValidationError: application/octet-stream");
    let long = "x".repeat(9 << 20);
    assert_eq!(put(&web, "free/new.py", &ops, &long).status, 413);
    assert_eq!(files(&playground), before, "nothing was written");

    let reply = put(&web, "free/./new.py", &ops, SCRIPT);
    assert_eq!(reply.status, 201, "{}", reply.body);
    let new = playground.path("user_scripts/free/new.py");
    assert_eq!(fs::read_to_string(&new).unwrap(), SCRIPT);
    assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o644);
    assert_eq!(files(&playground).len(), before.len() + 1);
    let log = fs::read_to_string(playground.path("state/audit.jsonl")).unwrap();
    assert!(
        log.contains("\"uploaded\":{\"path\":\"free/new.py\""),
        "{log}"
    );
    put(&web, "free/new.py", &ops, "print(2)\n")
        .is(403, "SecurityError: a file of this name is there");
    drop(web);

    let input = json!({"scriptPath": "free/new.py", "inputData": {}}).to_string();
    let run = || playground.call("core:execute-python-script", &input);
    assert!(run().text().contains("uploaded"));
    let cap = "name = \"cap\"\nwhy = \"a test\"\n[approval]\nrequired = true\n";
    fs::write(playground.path("sandbox-policies/host.policy.toml"), cap).unwrap();
    playground.settle();
    let refused = run().stderr;
    assert!(refused.contains("belongs to no tool"), "{refused}");
}
