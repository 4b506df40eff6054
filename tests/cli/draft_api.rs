//! `new --from` of an API's document: the tool makes that one request, and what the document says is
//! data.

use crate::prelude::*;
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

const PETS: &str = include_str!("petstore.json");

/// Answers one request with what came.
fn echo(server: TcpListener) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut came, _) = server.accept().unwrap();
        let request = request(&mut came);
        let body = json!({ "request": request }).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        came.write_all((head + &body).as_bytes()).unwrap();
        request
    })
}

/// A request's head, and its body.
fn request(came: &mut TcpStream) -> String {
    let mut lines = BufReader::new(came);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let length = head.split("ontent-Length: ").nth(1);
    let length = length.map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}

/// Drafts a tool of a document whose server is this one, and grants what the printed command
/// suggests.
fn drafted(playground: &Playground, document: &str, operation: &str) -> (Value, TcpListener) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", server.local_addr().unwrap());
    let document = document.replace("https://pets.example.com/v1", &url);
    fs::write(playground.path("pets.json"), document).unwrap();
    playground.settle();
    let file = playground.path("pets.json").display().to_string();
    let made = playground.cli(&["new", "pet", "--from", &file, "--operation", operation]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(!made.text().contains("For a model"), "{}", made.text());
    playground.settle();
    assert!(
        made.text().contains("audit custom:pet --suggest-policy"),
        "{}",
        made.text()
    );
    let policy = playground
        .cli(&["audit", "custom:pet", "--suggest-policy"])
        .text();
    fs::write(playground.path("sandbox-policies/pet.policy.toml"), policy).unwrap();
    playground.settle();
    let manifest = fs::read(playground.path("user_scripts/pet/pet.tool.json")).unwrap();
    (serde_json::from_slice(&manifest).unwrap(), server)
}

#[test]
fn an_operation_becomes_a_tool_that_makes_its_request() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let (manifest, server) = drafted(&playground, PETS, "updatePet");
    assert_eq!(
        manifest["description"],
        "Changes a pet.\n\nWhat is left out stays."
    );
    let parameters = &manifest["parameters"];
    let mut required: Vec<_> = parameters["required"].as_array().unwrap().iter().collect();
    required.sort_by_key(|name| name.as_str());
    assert_eq!(json!(required), json!(["body", "petId"]));
    let body = &parameters["properties"]["body"];
    // What only answers have is not sent, and what leads back to itself ends.
    assert_eq!(
        (&body["description"], &body["required"]),
        (&json!("The pet."), &json!(["name"]))
    );
    assert!(
        body["properties"]["mother"]["properties"]["mother"].is_object(),
        "{body}"
    );
    let heard = echo(server);
    let input = json!({"petId": "a/../b?c=#\r\nd", "tags": ["x&y", "z"], "X-Trace": "t", "body": {"name": null}});
    let answer = playground.expect("custom:pet", &input.to_string(), "ok");
    let request = heard.join().unwrap();
    assert_eq!(answer.out["outputData"]["request"], request, "{answer:?}");
    let line = "PUT /v1/pets/a%2F..%2Fb%3Fc%3D%23%0D%0Ad?tags=x%26y&tags=z HTTP/1.1\r\n";
    assert!(
        request.starts_with(line) && request.contains("X-Trace: t\r\n"),
        "{request}"
    );
    assert!(
        request.contains("Content-Type: application/json\r\n"),
        "{request}"
    );
    assert!(request.ends_with("\r\n\r\n{\"name\": null}"), "{request}");
    for part in ["..", ""] {
        let input = json!({"petId": part, "body": {"name": "x"}}).to_string();
        playground.expect("custom:pet", &input, "ScriptError");
    }
    // The control: nothing is granted without the operator.
    fs::remove_file(playground.path("sandbox-policies/pet.policy.toml")).unwrap();
    playground.expect("custom:pet", &input.to_string(), "SecurityError");
}

/// What OpenAPI allows beside the usual form of a document.
#[test]
fn an_operation_may_be_written_in_every_way_that_is_legal() {
    let mut document: Value = serde_json::from_str(PETS).unwrap();
    let path = "/pets/{petId}";
    let mut item = document["paths"][path].take();
    item["parameters"][0]["schema"] = json!(true);
    let content = &mut item["put"]["requestBody"]["content"];
    *content = json!({"application/json; charset=utf-8": content["application/json"].take()});
    document["components"]["pathItems"] = json!({ "Pet": item });
    document["paths"][path] = json!({"$ref": "#/components/pathItems/Pet"});
    document["paths"]["/others"] = json!({"$ref": "others.json"});
    document["paths"]["x-note"] = json!("not a path");
    let pet = &mut document["components"]["schemas"]["Pet"];
    pet["properties"]["any"] = json!(true);
    pet["properties"]["none"] = json!(false);
    pet["additionalProperties"] = json!(false);
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let (_, server) = drafted(&playground, &document.to_string(), "updatePet");
    let call = |body: Value, wanted: &str| {
        let input = json!({"petId": "1", "body": body}).to_string();
        playground.expect("custom:pet", &input, wanted);
    };
    call(json!({"name": "x", "none": 1}), "ParameterValidationError");
    call(json!({"name": "x", "more": 1}), "ParameterValidationError");
    let heard = echo(server);
    call(json!({"name": "x", "any": [1]}), "ok");
    let request = heard.join().unwrap();
    assert!(
        request.contains("Content-Type: application/json; charset=utf-8\r\n")
            && request.contains("\"any\": [1]"),
        "{request}"
    );
}

/// As code, the texts would end the script, or leave a file.
#[test]
fn what_a_document_says_is_never_code() {
    let code = "x\"\"\"'); __import__('os')._exit(7) #\\\n{}\u{2028}\u{1b}[2J";
    let mut document: Value = serde_json::from_str(PETS).unwrap();
    let path = "/pets\");__import__('os')._exit(7);(\"";
    let mut operation = document["paths"]["/pets"]["get"].take();
    operation["parameters"] = json!([
        { "name": code, "in": "query", "required": true, "schema": { "enum": ["v"], "description": code } },
    ]);
    operation["description"] = json!(code);
    operation["operationId"] = json!(code);
    document["paths"] = json!({ path: { "get": operation } });
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let (manifest, server) = drafted(&playground, &document.to_string(), code);
    let heard = echo(server);
    let argument = manifest["parameters"]["required"][0].as_str().unwrap();
    assert!(
        argument
            .chars()
            .all(|c| c.is_ascii() && (c.is_alphanumeric() || "_.-".contains(c)))
    );
    playground.expect("custom:pet", &json!({ argument: "v" }).to_string(), "ok");
    let request = heard.join().unwrap();
    let line = format!("GET /v1{path}?x%22%22%22%27%29%3B+__import__");
    assert!(request.starts_with(&line), "{request}");
}

#[test]
fn a_document_that_cannot_be_used_is_refused_and_nothing_is_made() {
    let host = host();
    let with = |pointer: &str, value: Value| {
        let mut document: Value = serde_json::from_str(PETS).unwrap();
        *document.pointer_mut(pointer).unwrap() = value;
        document.to_string()
    };
    let without = |name: &str| {
        let mut document: Value = serde_json::from_str(PETS).unwrap();
        document.as_object_mut().unwrap().remove(name);
        document.to_string()
    };
    let server = |url: &str| with("/servers/0/url", json!(url));
    let pet = |schema: Value| with("/components/schemas/Pet", schema);
    let fan = |n: usize| json!({ "$ref": format!("#/components/schemas/S{n}") });
    let mut wide: Value = (0..6)
        .map(|n| (format!("S{n}"), json!({ "anyOf": vec![fan(n + 1); 8] })))
        .collect();
    wide["Pet"] = wide["S0"].clone();
    wide["S6"] = json!({});
    let to = |reference: &str| json!({ "$ref": reference });
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = "/paths/~1pets~1{petId}/put/requestBody/content";
    for (text, why) in [
        (with("/openapi", json!("2.0")), "3.0 or 3.1"),
        (server("/v1"), "servers[0].url"),
        (server("ftp://pets.example.com/"), "servers[0].url"),
        (server("https://me:pw@pets.example.com/"), "servers[0].url"),
        (server("https://{region}.example.com/"), "servers[0].url"),
        (server("https://*.example.com/"), "servers[0].url"),
        (server("https://pets.example.com/?a=b"), "servers[0].url"),
        (server("https://999.1.1.1/"), "is not a host"),
        (with("/servers", json!("x")), "the form"),
        (with("/servers", json!([])), "servers[0].url '/'"),
        (without("servers"), "servers[0].url '/'"),
        (without("openapi"), "Swagger 2.0"),
        ("[]".to_owned(), "3.0 or 3.1"),
        (without("paths"), "0 operations"),
        (without("components"), "is not in the document"),
        (
            with("/components/securitySchemes", json!({}))
                .replace("\"paths\"", "\"security\":[{\"token\":[]}],\"paths\""),
            "'#/components/securitySchemes/token' is not in the document",
        ),
        (
            with("/paths", json!({"/pets": {"$ref": "pets.json"}})),
            "/pets leads out of the document",
        ),
        (
            pet(to("https://x.example.com/pet.json")),
            "leads out of the document",
        ),
        (pet(to("#/components/schemas/Pet")), "in a circle"),
        (pet(to("#/components/schemas/none")), "none"),
        (with("/components/schemas", wide), "parts"),
        (pet(json!(["x"])), "the form"),
        (pet(json!({ "type": "no such" })), "no manifest"),
        (
            pet(json!({ "enum": ["¤"] })).replace("\"¤\"", "1e999"),
            "JSON",
        ),
        (
            pet(json!({ "enum": ["¤"] })).replace('¤', "\\ud800"),
            "surrogate",
        ),
        (
            with(body, json!({ "text/plain": {} })),
            "'body' is required",
        ),
        (
            with("/paths/~1pets~1{petId}/parameters", json!([])),
            "in braces",
        ),
        (deep, "recursion"),
        (format!("{}{}", " ".repeat(5 << 20), PETS), "larger than"),
        ("openapi: 3.0.0".to_owned(), "line 1"),
    ] {
        let file = host.put("pets.json", &text);
        let (code, _, err) = host.run(&["new", "x", "--from", &file, "--operation", "updatePet"]);
        assert!(code == 2 && err.contains(why), "{why}: {code} {err}");
        assert!(
            err.contains("pets.json: ") || err.contains("no manifest for x"),
            "{err}"
        );
        assert!(!host.path("user_scripts/x").exists(), "{why}");
    }
    // Without an operation all are listed.
    let file = host.put("pets.json", PETS);
    let (code, _, err) = host.run(&["new", "x", "--from", &file]);
    assert!(
        code == 2 && err.contains("\n  PUT /pets/{petId}  updatePet\n"),
        "{err}"
    );
    assert!(!host.path("user_scripts/x").exists());
    // The control, with an operation that is named by its path.
    let (code, out, err) = host.run(&["new", "x", "--from", &file, "--operation", "GET /pets"]);
    assert!(
        code == 0 && out.contains("Not taken over: filter."),
        "{out}{err}"
    );
}
