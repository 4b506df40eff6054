//! P3: what tools write is data for everybody, and code for nobody: a loader is asked at each load,
//! by the real path.

use super::{files, says, set_mode};
use crate::prelude::*;

const PY: &str = include_str!("loads.py");
const JS: &str = include_str!("loads.mjs");
const READERS: [(&str, &str, &str); 3] = [
    ("mod:py", "python", "py.py"),
    ("mod:node", "nodejs", "node.mjs"),
    ("mod:bun", "bun", "bun.mjs"),
];

/// What a script printed last, run without any layer.
fn outside(playground: &Playground, language: &str, file: &Path) -> Value {
    let program = match language {
        "python" => PYTHON.into(),
        "nodejs" => found("node").unwrap(),
        other => found(other).unwrap(),
    };
    let mut command = playground.outside(&program.display().to_string());
    command
        .args(["-s", "-E", "-B"].iter().filter(|_| language == "python"))
        .arg(file);

    let ended = finish(command, b"");
    serde_json::from_str(ended.text().lines().last().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{ended:?}"))
}

#[test]
fn what_lies_where_tools_write_is_read_and_not_loaded() {
    if !READERS.iter().all(|(_, language, _)| has(language, 1)) {
        return;
    }
    as_everyone("loads", |who| {
        let playground = Playground::new(who, "/var/tmp");
        let shared = playground.path("user_scripts/shared");
        playground.allow("mod-writer", "mod:writer", &["./**"], &["./lib/**"]);
        for (id, language, file) in READERS {
            let script = if language == "python" { PY } else { JS };
            let text = json!({"execution": {"output": "text"}});
            playground.tool_at(id, language, &format!("shared/{file}"), script, text);
        }
        playground.settle();
        let mut make = playground.outside(PYTHON);
        make.arg(shared.join("py.py")).arg("make");
        let made = finish(make, b"");
        assert_eq!(made.code, Some(0), "{made:?}");
        playground.settle();
        set_mode(shared.join("lib/program"), 0o755);
        let inside = |id: &str| {
            let ended = playground.expect(id, "{}", "ok");
            let printed = &ended.out["outputData"];
            let last = printed
                .as_str()
                .and_then(|text| serde_json::from_str(text.lines().last()?).ok());
            (last.unwrap_or_else(|| printed.clone()), ended)
        };
        let all = |got: &Value, wanted: &str| {
            let forms = got["loads"].as_object().unwrap();
            forms
                .iter()
                .filter(|(_, how)| *how != wanted)
                .map(|(form, how)| format!("{form}: {how}"))
                .collect::<Vec<_>>()
        };
        let none = Vec::<String>::new();
        let mut works = Vec::new();
        for (id, language, file) in READERS {
            // The controls: outside of all layers, and behind them where no tool writes there.
            let control = outside(&playground, language, &shared.join(file));
            assert_eq!(all(&control, "loaded"), none, "{who:?} {id}: outside");
            assert_eq!(
                all(&inside(id).0, "loaded"),
                none,
                "{who:?} {id}: nobody writes"
            );
            works.push(control["works"].clone());
        }
        playground.tool_at(
            "mod:writer",
            "python",
            "shared/writer.py",
            "print(1)\n",
            files(&["self"], &["lib/**"]),
        );
        playground.settle();
        set_mode(shared.join("lib/program"), 0o755);
        for ((id, ..), works) in READERS.iter().zip(works) {
            let (got, ended) = inside(id);
            assert_eq!(all(&got, "refused"), none, "{who:?} {id}: {got}");
            assert_eq!(got["works"], works, "{who:?} {id}");
            let logs = ended.out["logs"].to_string();
            assert!(
                logs.contains("was not loaded: tools write there") && logs.contains("move it"),
                "{ended:?}"
            );
        }
        says(
            &playground,
            &["check"],
            &["tools write there, so it is data"],
        );
    });
}
