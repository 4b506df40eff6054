//! docs/RECIPES.md: its program, a function as a tool, and a script behind the layers beside it.

use crate::prelude::*;

fn embedded(playground: &Playground, tool: &str, arguments: &str) -> Value {
    let program = Path::new(env!("CARGO_BIN_EXE_toolhost")).with_file_name("examples/embed");
    let mut command = playground.outside(&program.display().to_string());
    command.arg(&playground.base).args([tool, arguments]);
    let ended = finish(command, b"");
    assert!(ended.out.is_object(), "{ended:?}");
    ended.out
}

#[test]
fn the_page_is_its_example_and_functions_are_tools() {
    let page = include_str!("../docs/RECIPES.md");
    let unindented = |text: &str| -> String {
        let lines = text
            .lines()
            .map(|line| line.strip_prefix("   ").unwrap_or(line));
        lines.collect::<Vec<_>>().join("\n")
    };
    let blocks: Vec<String> = page.split("```").map(unindented).collect();
    let has = |kind: &str, text: &str| {
        blocks.iter().any(|block| {
            block
                .strip_prefix(kind)
                .is_some_and(|block| text.contains(block.trim()))
        })
    };
    let manifest = include_str!("../docs/embedding.tool.json");
    assert!(has("rust\n", include_str!("../examples/embed.rs")));
    assert!(has("json\n", manifest));
    let playground = Playground::new(Who::ours(), "/var/tmp");
    fs::write(playground.path("tool-defs/count.tool.json"), manifest).unwrap();
    playground.tool("hello", "python", "print('\"hello\"')\n", json!({}));
    playground.settle();
    let text = r#"{"text": "one two three"}"#;
    let answer = embedded(&playground, "text:count", text);
    assert_eq!(answer["outputData"], json!({"words": 3}), "{answer}");
    let answer = embedded(&playground, "text:count", r#"{"text": " "}"#);
    assert_eq!(
        answer["error"]["message"], "The text has no words.",
        "{answer}"
    );
    let answer = embedded(&playground, "text:count", "{}");
    assert_eq!(
        answer["error"]["type"], "ParameterValidationError",
        "{answer}"
    );
    let answer = embedded(&playground, "esc:hello", "{}");
    assert_eq!(answer["outputData"], "hello", "{answer}");
}
