//! The trace that a call is part of.

use crate::broker::Trace;
use http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId};

/// Longest `traceparent` and `tracestate`, bytes.
const MAX_HEADER_BYTES: (usize, usize) = (128, 512);
/// The lengths of the parts of a `traceparent`: version, trace, span, flags.
const PARTS: [usize; 4] = [2, 32, 16, 2];

/// What a request says of the trace that it is part of (W3C Trace Context).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(pub(super) SpanContext);

impl TraceContext {
    /// `None` if `parent` is not a valid `traceparent`. A `tracestate` that cannot be read is
    /// ignored.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<TraceContext> {
        let parent = parent.trim_matches([' ', '\t']);
        let parts: Vec<&str> = parent.splitn(PARTS.len() + 1, '-').collect();
        let whole = parts.iter().zip(PARTS).all(|(part, length)| {
            part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
        let [version, trace, span, flags, more @ ..] = &parts[..] else {
            return None;
        };
        // A later version may say more (W3C Trace Context, section 4.3).
        if parent.len() > MAX_HEADER_BYTES.0
            || !whole
            || *version == "ff"
            || *version == "00" && !more.is_empty()
        {
            return None;
        }
        let trace = TraceId::from_hex(trace).ok()?;
        let span = SpanId::from_hex(span).ok()?;
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
        let state = state.filter(|state| {
            state.len() <= MAX_HEADER_BYTES.1 && state.bytes().all(|b| (b' '..=b'~').contains(&b))
        });
        let state = state
            .and_then(|state| state.parse().ok())
            .unwrap_or_default();
        let context = SpanContext::new(trace, span, flags, true, state);
        context.is_valid().then_some(TraceContext(context))
    }

    /// Reads the context from the headers of a request.
    pub fn from_headers(headers: &HeaderMap) -> Option<TraceContext> {
        fn texts<'h>(name: &str, headers: &'h HeaderMap) -> Option<Vec<&'h str>> {
            headers
                .get_all(name)
                .iter()
                .map(|text| text.to_str().ok())
                .collect()
        }
        let parents = texts("traceparent", headers)?;
        let [parent] = parents[..] else { return None };
        // Several lines are one list (W3C Trace Context, section 3.3.1).
        TraceContext::parse(
            parent,
            texts("tracestate", headers)
                .map(|lines| lines.join(","))
                .as_deref(),
        )
    }

    /// 32 hex digits.
    pub fn id(&self) -> String {
        self.0.trace_id().to_string()
    }

    pub fn parent(&self) -> String {
        let sampled = self.0.trace_flags() & TraceFlags::SAMPLED;
        format!(
            "00-{}-{}-{:02x}",
            self.0.trace_id(),
            self.0.span_id(),
            sampled
        )
    }

    /// The text of `tracestate`; empty if there is none.
    pub fn state(&self) -> String {
        self.0.trace_state().header()
    }

    /// The context as the properties of a broker message.
    pub fn sent(&self) -> Trace {
        Trace {
            parent: Some(self.parent()),
            state: Some(self.state()).filter(|state| !state.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read_and_written_and_what_is_none_is_left_alone() {
        let read = TraceContext::parse(PARENT, Some("a=1,b=2")).expect("a context");
        assert_eq!(
            (read.parent(), read.state()),
            (PARENT.to_owned(), "a=1,b=2".to_owned())
        );
        assert_eq!(read.id(), "0af7651916cd43dd8448eb211c80319c");
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-may-come";
        assert_eq!(
            TraceContext::parse(later, None)
                .expect("of a later version")
                .parent(),
            PARENT
        );
        let (start, end) = (
            "00-0af7651916cd43dd8448eb211c80319c-",
            "-b7ad6b7169203331-01",
        );
        for bad in [
            "",
            &PARENT[..52],
            &format!("{PARENT}-more"),
            &format!("{PARENT}-"),
            &format!("{PARENT}\n"),
            &format!("ff{}", &PARENT[2..]),
            &PARENT.to_uppercase(),
            &PARENT.replace("-0af", "-+af"),
            &format!("00-{}{end}", "0".repeat(32)),
            &format!("{start}{}-01", "0".repeat(16)),
        ] {
            assert_eq!(TraceContext::parse(bad, None), None, "{bad:?}");
        }
        assert_eq!(
            TraceContext::parse(&format!("cc{}-{}", &PARENT[2..], "x".repeat(200)), None),
            None,
            "too long"
        );
        for state in ["a", "a=\u{1}", "é=1", &"a=1,".repeat(200)] {
            assert_eq!(
                TraceContext::parse(PARENT, Some(state))
                    .expect("a context")
                    .state(),
                "",
                "{state:?}"
            );
        }
    }
}
