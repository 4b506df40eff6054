//! What a host that gets a secret answers, as the tool sees it: without the secrets, and with links
//! to that host that lead back through the relay. What cannot be searched is refused.

use crate::base::mask::{Finder, Search};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use std::sync::Arc;

pub type AnswerBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Encodings that contain ASCII, by the beginnings of their names.
const CHARSETS: [&str; 6] = [
    "utf-8",
    "utf8",
    "us-ascii",
    "ascii",
    "iso-8859-",
    "windows-125",
];

/// Masks a response. `host`: its name, and its TLS port. `None`: the response cannot be searched.
pub fn mask(
    response: Response<Incoming>,
    host: (&str, u16),
    finder: &Arc<Finder>,
) -> Option<Response<AnswerBody>> {
    let (mut head, body) = response.into_parts();
    let parts = [
        StatusCode::SWITCHING_PROTOCOLS,
        StatusCode::PARTIAL_CONTENT,
        StatusCode::IM_USED,
    ];
    if parts.contains(&head.status) || !body.is_end_stream() && is_encoded(&head.headers) {
        return None;
    }
    // The reason phrase and the case of names are chosen by the host, too.
    head.extensions.clear();
    let masked = |text: &[u8]| {
        let mut search = Search::new(Arc::clone(finder), true);
        [search.push(text), search.finish()].concat()
    };
    let mut headers = HeaderMap::new();
    for (header, value) in &head.headers {
        let text = match value.to_str() {
            Ok(link) if [header::LOCATION, header::LINK].contains(header) => {
                lead_back(link, host.0, host.1).into_bytes()
            }
            _ => value.as_bytes().to_vec(),
        };
        // A header with a secret in its name is dropped.
        let named = header.as_str().as_bytes();
        if let Some(value) = HeaderValue::from_bytes(&masked(&text))
            .ok()
            .filter(|_| masked(named) == named)
        {
            headers.append(header, value);
        }
    }
    head.headers = headers;
    if body.is_end_stream() {
        return Some(Response::from_parts(head, body.boxed_unsync()));
    }
    // Overwritten byte for byte, so that lengths stay true. What comes after the body is left out.
    let mut search = BodySearch::new(finder);
    let pieces = body
        .into_data_stream()
        .map_ok(Some)
        .chain(stream::iter([Ok(None)]));
    let body = StreamBody::new(pieces.map_ok(move |piece: Option<Bytes>| match piece {
        Some(piece) => Frame::data(search.push(&piece).into()),
        None => Frame::data(search.search.finish().into()),
    }));
    Some(Response::from_parts(head, body.boxed_unsync()))
}

/// A search of a body, for which an empty line ends a text: no secret of a header holds a line
/// break, and an event of an event stream (Server-Sent Events) must pass before the next one comes.
struct BodySearch {
    finder: Arc<Finder>,
    search: Search,
    /// Whether nothing, or only carriage returns, came since the last line break.
    at_line_start: bool,
}

impl BodySearch {
    fn new(finder: &Arc<Finder>) -> BodySearch {
        BodySearch {
            finder: finder.clone(),
            search: Search::new(finder.clone(), true),
            at_line_start: false,
        }
    }

    fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(piece.len());
        let mut next = 0;
        for (at, byte) in piece.iter().enumerate() {
            if self.at_line_start && *byte == b'\n' {
                shown.extend(self.search.push(&piece[next..=at]));
                shown.extend(self.search.finish());
                self.search = Search::new(self.finder.clone(), true);
                next = at + 1;
            }
            self.at_line_start = *byte == b'\n' || self.at_line_start && *byte == b'\r';
        }
        shown.extend(self.search.push(&piece[next..]));
        shown
    }
}

/// Whether a secret could be in the body without appearing in its bytes: compressed, in an encoding
/// without ASCII, or split between parts.
fn is_encoded(headers: &HeaderMap) -> bool {
    let all = |name, plain: &str| {
        let values = headers
            .get_all(name)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        values
            .map(<[u8]>::trim_ascii)
            .all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case(plain.as_bytes()))
    };
    let kinds: Vec<_> = headers
        .get_all(header::CONTENT_TYPE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let kind = String::from_utf8_lossy(&kinds.join(&b',')).to_ascii_lowercase();
    let mut charsets = kind
        .split("charset")
        .skip(1)
        .map(|rest| rest.trim_start_matches([' ', '\t', '=', '"', '\'']));
    !all(header::CONTENT_ENCODING, "identity")
        || !all(header::TRANSFER_ENCODING, "chunked")
        || kind.contains("byteranges")
        || !charsets.all(|charset| CHARSETS.iter().any(|known| charset.starts_with(known)))
}

/// A link `https://NAME/…`, in `Link` behind a `<`, becomes `http://NAME/…`.
fn lead_back(link: &str, name: &str, port: u16) -> String {
    let port = if port == 443 {
        String::new()
    } else {
        format!(":{port}")
    };
    format!("<{link}")
        .replace(
            &format!("<https://{name}{port}/"),
            &format!("<http://{name}/"),
        )
        .split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::mask::Mask;

    #[test]
    fn an_empty_line_lets_pass_all_before_it_wherever_pieces_end() {
        let mut mask = Mask::default();
        mask.add("s3cret/Value+1");
        let finder = mask.finder().expect("a finder");
        for (text, passed) in [
            ("a s3cret/Value+1\n\nb", "a **************\n\n"),
            ("s3cret/\r\nValue+1\r\n\r\nb", "****************\r\n\r\n"),
            (
                "s3cret%2\\u0066Value+1\n\r\nb",
                "*********************\n\r\n",
            ),
            ("czNjcmV0L1Zh\nbHVlKzE\n\n\nb", "*******************E\n\n\n"),
            // One secret on either side, and parts that are none.
            (
                "s3cret/Value+1\n\ns3cret/Value+1\n\n",
                "**************\n\n**************\n\n",
            ),
            ("s3cret/\n\nValue+1", "s3cret/\n\n"),
            ("a\n \nb\r\rc\n\td\\n\\n", ""),
        ] {
            for cut in 0..=text.len() {
                let mut search = BodySearch::new(&finder);
                let (first, second) = text.as_bytes().split_at(cut);
                let shown = [search.push(first), search.push(second)].concat();
                assert_eq!(String::from_utf8_lossy(&shown), passed, "{text:?}, {cut}");
                let whole = [shown, search.search.finish()].concat();
                assert_eq!(whole.len(), text.len(), "{text:?}, {cut}");
            }
        }
    }
}
