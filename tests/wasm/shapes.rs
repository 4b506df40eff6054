//! Module shapes: the three that are accepted, and how others are refused.

use super::*;

#[tokio::test]
async fn all_three_shapes_echo() {
    let input = json!({"text": "héllo", "list": [1, 2.5, null]});
    let binary = wat::parse_str(command_echo()).expect("wat");
    for module in [
        typed_echo().into_bytes(),
        command_echo().into_bytes(),
        binary,
        cli_component(),
    ] {
        let tool = Tool::new(module);
        let outcome = tool.call(input.clone()).await.expect("an outcome");
        assert_eq!(outcome.ending, Ending::answer(&input));
        assert!(outcome.usage.cpu_ms.is_some());
        assert!(
            outcome
                .usage
                .peak_memory_bytes
                .is_some_and(|n| n >= 2 << 16)
        );
        assert!(outcome.layers.iter().any(|w| w.name == "wasm"));
    }
}

#[tokio::test]
async fn a_long_input_arrives_whole() {
    let input = json!({"text": "x".repeat(200_000)});
    assert_eq!(
        Tool::new(command_echo()).ending(input.clone()).await,
        Ending::answer(&input)
    );
}

#[tokio::test]
async fn entry_point_names_another_typed_export() {
    let mut tool = Tool::new(typed_echo());
    tool.shape.entry_point = Some("again".into());
    assert_eq!(tool.ending(json!([1])).await, Ending::answer(&json!([1])));
    tool.shape.entry_point = Some("missing".into());
    let message = tool.refusal().await;
    assert!(
        message.contains("no export `missing`; exports of the right type: ")
            && message.contains("again"),
        "{message}"
    );
}

#[tokio::test]
async fn anything_else_is_refused_with_what_is_accepted() {
    let reactor = r#"(module (memory (export "memory") 1) (func (export "_initialize")))"#;
    let bare = r#"(module (memory (export "memory") 1) (func (export "main")))"#;
    let hidden = r#"(module (memory 1) (func (export "_start")))"#;
    let number = r#"(component (core module $m (func (export "f") (result i32) (i32.const 1)))
        (core instance $i (instantiate $m)) (func (export "run") (result u32) (canon lift (core func $i "f"))))"#;
    for (module, why) in [
        (reactor, "is a WASI reactor"),
        (bare, "exports no `_start`"),
        (hidden, "but not its `memory`"),
        (number, "`run` is not `func(input: string)"),
        ("(component)", "the component exports nothing"),
    ] {
        let message = Tool::new(module).refusal().await;
        assert!(message.contains(why), "{message}");
        for accepted in [
            "run: func(input: string) -> result<string, string>",
            "wasi:cli/run@0.2.x",
            "_start",
        ] {
            assert!(message.contains(accepted), "{message}");
        }
    }
    let foreign = r#"(module (import "env" "system" (func)) (memory (export "memory") 1) (func (export "_start")))"#;
    assert!(
        Tool::new(foreign)
            .refusal()
            .await
            .contains("cannot be linked")
    );
    let imports =
        r#"(component (import "wasi:http/outgoing-handler@0.2.0" (instance (export "x" (func)))))"#;
    let message = Tool::new(imports).refusal().await;
    assert!(
        message.contains("exports nothing") || message.contains("does not offer"),
        "{message}"
    );
    assert!(
        Tool::new("(module (oops))")
            .refusal()
            .await
            .contains("not WebAssembly")
    );
    assert!(
        Tool::new(b"\xff\xfe\x00")
            .refusal()
            .await
            .contains("neither WebAssembly nor its text form")
    );
    assert!(
        Tool::new(b"\0asm\x01\0\0\0\x07\xff\xff\xff\xff")
            .refusal()
            .await
            .contains("damaged")
    );
}
