//! `new --edit`: each field is asked for and checked, and the file is written once, at the end.

use super::advice::text_tool;
use crate::prelude::*;

fn edit(host: &Host, tool: &str, answers: &str) -> Ended {
    let mut command = host.process();
    command.args(["new", tool, "--edit"]);
    finish(command, answers.as_bytes())
}

#[test]
fn each_field_is_asked_for_checked_and_written_at_the_end() {
    let host = host();
    text_tool(&host, "custom:weak", "Adds.", "A number.", json!([]));
    text_tool(&host, "custom:other", "Adds.", "A number.", json!([]));
    let file = host.path("user_scripts/weak/weak.tool.json");
    let before = fs::read_to_string(&file).unwrap();
    let edit = |answers: &str| edit(&host, "weak", answers);
    // The fields, as it asks for them when each is kept.
    let kept = edit(&"\n".repeat(40));
    assert_eq!(kept.code, Some(0), "{kept:?}");
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), before.trim());
    let asked: Vec<String> = kept
        .text()
        .lines()
        .filter_map(|line| Some(line.split_once(": ")?.0.to_owned()))
        .collect();
    assert!(
        asked.contains(&"/parameters/properties/n/description".to_owned()),
        "{asked:?}"
    );
    let answers = |say: &dyn Fn(&str) -> &'static str| -> String {
        asked.iter().map(|field| say(field)).collect()
    };
    // A bad answer is refused and asked again; one that ends early writes nothing.
    let changes = answers(&|field| match field {
        "/description" => "\u{1b}[1mAdds two whole numbers.\n",
        "/version" => "1.0\n1.2.0\n",
        // What would not load, or disable another tool.
        "/toolId" => "custom:Other\nskill:weak\ncore:weak\nours:weak\n",
        "/handler/scriptPath" => "../../../etc/x.py\nweak/gone.py\n\n",
        "/parameters/properties/n/type" => "int\nnumber\n",
        "/examples" => "[{\"input\": \"x\"\n[{\"description\": \"d\", \"input\": {\"n\": 1}}]\n",
        _ => "\n",
    });
    let ended = edit(
        changes
            .rsplit_once('\n')
            .unwrap()
            .0
            .rsplit_once('\n')
            .unwrap()
            .0,
    );
    assert!(
        ended.code == Some(2) && ended.stderr.contains("nothing was written"),
        "{ended:?}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), before.trim());
    let ended = edit(&changes);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for why in [
        "three numbers",
        "has the id custom:Other already",
        "the namespace 'skill'",
        "the namespace 'core'",
        "no script 'weak/gone.py'",
    ] {
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
    }
    let after: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(after["version"], "1.2.0");
    assert_eq!(after["parameters"]["properties"]["n"]["type"], "number");
    assert_eq!(after["examples"][0]["input"]["n"], 1);
    assert!(
        after["description"]
            .as_str()
            .unwrap()
            .ends_with("Adds two whole numbers.")
    );
    assert_eq!(after["toolId"], "ours:weak");
    assert_eq!(after["handler"]["scriptPath"], "weak/main.py");
    let checked = host.run(&["check"]).1;
    assert!(checked.contains(" 0 error(s)"), "{checked}");
    // What would be lost is not touched.
    fs::write(&file, format!("// mine\n{before}")).unwrap();
    let ended = edit(&"\n".repeat(40));
    assert!(
        ended.code == Some(2) && ended.stderr.contains("edit it by hand"),
        "{ended:?}"
    );
    let unknown = host.run(&["new", "none", "--edit"]);
    assert!(
        unknown.0 == 2 && unknown.2.contains("no manifest that loads"),
        "{unknown:?}"
    );
}

#[test]
fn a_question_without_an_answer_changes_nothing() {
    let host = host();
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let all = json!({"description": "Adds.", "parameters": parameters});
    host.tool("custom:bare", all);
    let file = host.path("user_scripts/bare/bare.tool.json");
    // As no program writes it.
    let before = fs::read_to_string(&file).unwrap() + "\n\n";
    fs::write(&file, &before).unwrap();
    let kept = edit(&host, "bare", &"\n".repeat(40));
    assert!(
        kept.code == Some(0)
            && kept
                .text()
                .contains("/parameters/properties/n/description: "),
        "{kept:?}"
    );
    assert!(kept.text().contains("nothing was written"), "{kept:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let said = kept.text();
    let asked = said.lines().filter_map(|line| line.split_once(": "));
    let answers = asked.map(|(field, _)| match field {
        "/description" => "Adds two.\n",
        _ => "\n",
    });
    let ended = edit(&host, "bare", &answers.collect::<String>());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let after: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(after["description"], "Adds two.");
    assert_eq!(after["parameters"], parameters);
}
