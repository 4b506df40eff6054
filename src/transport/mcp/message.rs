//! Reads messages. The arguments of a call are cut out as text, for the service to parse; all else
//! is read strictly and bounded before rmcp sees it.

use crate::base::json::{self, Text};
use rmcp::model::{CallToolRequest, ErrorCode, ErrorData, JsonRpcMessage, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::io;

/// Most memory that a message may take as a tree, without the arguments of a call, bytes: many
/// messages may be open.
const MAX_TREE_BYTES: usize = 64 * 1024;
const CALL: &str = "tools/call";
/// Why a second request under the id of one that is open is refused.
pub const DUPLICATE_ID: &str = "A request with this id is not answered yet.";
const ARGUMENTS: &str = "/params/arguments";

/// A message as JSON. An error that answers no request has the id `null` (JSON-RPC 2.0, section 5).
pub fn message_of(item: &TxJsonRpcMessage<RoleServer>) -> io::Result<Map<String, Value>> {
    let Value::Object(mut message) = serde_json::to_value(item)? else {
        return Ok(Map::new());
    };
    if message.contains_key("error") {
        message.entry("id").or_insert(Value::Null);
    }
    Ok(message)
}

/// A message, and the arguments that were taken out of it.
pub struct Received {
    pub message: RxJsonRpcMessage<RoleServer>,
    pub arguments: Option<String>,
    /// The text for rmcp, which makes a tree of it. It has the arguments only if that tree stays
    /// small.
    pub small: Text,
}

/// One line or body: `None` for an empty one or an unknown notification; or the error to send back.
pub struct Message(pub(super) Result<Option<Received>, ErrorReply>);

impl Message {
    pub fn read(line: &[u8]) -> Message {
        Message(read(line))
    }

    pub fn is_request(&self) -> bool {
        matches!(
            &self.0,
            Ok(Some(Received {
                message: JsonRpcMessage::Request(_),
                ..
            }))
        )
    }

    /// Whether the message leads to no request. Its refusal is then recorded.
    pub fn is_refused(&self) -> bool {
        self.0.is_err()
    }
}

pub fn read(line: &[u8]) -> Result<Option<Received>, ErrorReply> {
    let line = line
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(line)
        .trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let unreadable = |why: &str| {
        refusal(
            ErrorCode::PARSE_ERROR,
            &format!("Not one JSON document: {why}"),
            id_of(line),
        )
    };
    let invalid = |words: &str, id| refusal(ErrorCode::INVALID_REQUEST, words, id);
    let text = std::str::from_utf8(line).map_err(|_| unreadable("it is not UTF-8"))?;
    let (rest, arguments) = cut_arguments(text).unzip();
    let rest = json::compact(rest.as_deref().unwrap_or(text).as_bytes())
        .map_err(|bad| unreadable(&bad.message))?;
    let value = rest
        .tree(MAX_TREE_BYTES)
        .map_err(|_| invalid("The message holds too many values.", id_of(line)))?;
    let id: Option<RequestId> = value
        .get("id")
        .and_then(|id| serde_json::from_value(id.clone()).ok());
    if value.get("id").is_some() && id.is_none() {
        return Err(invalid("The id must be a string or a whole number.", None));
    }
    let cursor = value
        .pointer("/params/cursor")
        .filter(|_| value["method"] == "tools/list");
    if cursor.is_some_and(|cursor| !cursor.is_string() && !cursor.is_null()) {
        return Err(refusal(
            ErrorCode::INVALID_PARAMS,
            "The cursor must be a string.",
            id,
        ));
    }
    let has_method = value.get("method").is_some();
    // rmcp compares headers with arguments, so its text has the arguments if their tree stays
    // small.
    let whole = arguments
        .as_ref()
        .filter(|arguments| arguments.len() <= MAX_TREE_BYTES);
    let whole = whole
        .and_then(|_| json::compact(text.as_bytes()).ok())
        .filter(|whole: &Text| json::weight(whole.as_str()) <= MAX_TREE_BYTES);
    match call_of(&value, id.as_ref()).map_or_else(|| serde_json::from_value(value), Ok) {
        Ok(message) => Ok(Some(Received {
            small: whole.unwrap_or(rest),
            message,
            arguments,
        })),
        // A notification we do not know needs no answer.
        Err(_) if id.is_none() && has_method => Ok(None),
        Err(_) => Err(invalid("Not a message of this protocol.", id)),
    }
}

/// The message, if it is a call as most are written. rmcp tries every kind of request in turn, which
/// takes longer than to read the rest.
fn call_of(value: &Value, id: Option<&RequestId>) -> Option<RxJsonRpcMessage<RoleServer>> {
    let members = value.as_object().filter(|members| members.len() == 4)?;
    if members.get("jsonrpc")? != "2.0" || members.get("method")? != CALL {
        return None;
    }
    let call = CallToolRequest::deserialize(value).ok()?;
    Some(JsonRpcMessage::request(call.into(), id?.clone()))
}

/// The id of a message, also where the line is broken elsewhere.
pub fn id_of(line: &[u8]) -> Option<RequestId> {
    let text = line.utf8_chunks().next()?.valid();
    let id = json::member(text, "/id")?;
    // A number at the very end of the text may have been cut.
    let whole = id.as_ptr() as usize + id.len() < text.as_ptr() as usize + text.len();
    whole.then(|| serde_json::from_str(id).ok())?
}

/// A call with `{}` in place of its arguments, and the arguments as they are written.
fn cut_arguments(text: &str) -> Option<(String, String)> {
    let method = serde_json::from_str::<String>(json::member(text, "/method")?).ok()?;
    let arguments = json::member(text, ARGUMENTS)
        .filter(|arguments| method == CALL && arguments.starts_with('{'))?;
    let at = arguments.as_ptr() as usize - text.as_ptr() as usize;
    Some((
        format!("{}{{}}{}", &text[..at], &text[at + arguments.len()..]),
        arguments.to_owned(),
    ))
}

/// A JSON-RPC error that answers a message which cannot be served.
pub type ErrorReply = Box<TxJsonRpcMessage<RoleServer>>;

pub fn refusal(code: ErrorCode, words: &str, id: Option<RequestId>) -> ErrorReply {
    Box::new(JsonRpcMessage::error(
        ErrorData::new(code, words.to_owned(), None),
        id,
    ))
}

/// Methods that we know, and those that only the older era has.
const METHODS: &str = "completion/complete prompts/get prompts/list resources/directory/read \
                       resources/list resources/read resources/templates/list server/discover \
                       skills/get skills/list subscriptions/listen tasks/cancel tasks/get tasks/update tools/call tools/list";
const OLDER: &str = "initialize logging/setLevel ping resources/subscribe resources/unsubscribe";

/// What is wrong with a request whose parameters rmcp could not read. `None`: the method is
/// unknown.
pub fn fault_of(method: &str, params: Option<&Value>, modern: bool) -> Option<String> {
    fn knows(methods: &str, method: &str) -> bool {
        methods.split(' ').any(|known| known == method)
    }
    if !knows(METHODS, method) && (modern || !knows(OLDER, method)) {
        return None;
    }
    let arguments = params.and_then(|params| params.get("arguments"));
    Some(match method {
        CALL if arguments.is_some_and(Value::is_string) => {
            "params.arguments must be an object, not its JSON text: send the object itself."
                .to_owned()
        }
        CALL => {
            "params.name must be a string, the name of a tool, and params.arguments must be an \
            object."
                .to_owned()
        }
        "resources/directory/read" | "resources/read" | "skills/get" => {
            "params.uri must be a string, as it was listed.".to_owned()
        }
        _ => format!("The parameters of {method} are wrong."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        serde_json::to_string(&read(line.as_bytes()).err().expect(line)).unwrap()
    }

    #[test]
    fn a_message_has_one_reading() {
        let good = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__b","arguments":{"x":1}}}"#;
        assert!(matches!(read(good.as_bytes()), Ok(Some(_))));
        for (arguments, taken) in [
            (r#"{"x":1}"#, true),
            (r#"{"x":1,"x":2}"#, true),
            (r#"{"x":NaN}"#, true),
            (r#"{"x":"\ud83d"}"#, true),
            (r#"{ /* } */ "x":1}"#, true),
            (r#"[1]"#, false),
            (r#""{}""#, false),
        ] {
            let received = read(good.replace(r#"{"x":1}"#, arguments).as_bytes())
                .unwrap()
                .unwrap();
            assert_eq!(
                received.arguments.as_deref(),
                Some(arguments).filter(|_| taken),
                "for the pipeline to judge"
            );
        }
        let twice = good.replace(r#""name":"a__b""#, r#""name":"a__b","name":"c""#);
        for bad in [
            twice.as_str(),
            &good.replace("\"id\"", "\"x\":1e999,\"id\""),
            &good.replace(",\"params\"", ",\"x\":@,\"params\""),
        ] {
            let answer = refused(bad);
            assert!(
                answer.contains("-32700") && answer.contains("\"id\":1"),
                "{answer}"
            );
        }
        let echoed = |line: &str| read(line.as_bytes()).unwrap().unwrap().arguments;
        for same in [
            good.replace("tools/call", "tools\\/call"),
            good.replace("tools/call", "\\u0074ools/call"),
            good.replace("arguments", "\\u0061rguments"),
            format!("\u{feff}{good}"),
        ] {
            assert_eq!(
                echoed(&same).as_deref(),
                Some(r#"{"x":1}"#),
                "another spelling of the same: {same}"
            );
        }
        let private = r#""_meta":{"x":{"$serde_json::private::RawValue":"[[],[],[]]"}},"name""#;
        assert!(
            refused(&good.replace("\"name\"", private)).contains("-32700"),
            "text that would become a tree"
        );
        let mut half = good
            .replace("\"id\":1,", "")
            .replace("}}}", "}},\"id\":12")
            .into_bytes();
        assert_eq!(id_of(&half), None, "perhaps not all of it");
        half.extend_from_slice(b" ,\xff}");
        assert_eq!(id_of(&half), Some(RequestId::Number(12)));
        let many = good.replace(
            "\"method\"",
            &format!("\"x\":[{}1],\"method\"", "1,".repeat(100_000)),
        );
        assert!(
            refused(&many).contains("too many values"),
            "a tree is bounded"
        );
    }
}
