//! What a host that gets a secret answers, as the tool sees it: without the secrets, and with links to that host that
//! lead back through the relay. What cannot be searched is refused.

use super::message::{end_connection, in_connection};
use crate::base::mask::{Finder, Search};
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use std::sync::Arc;

pub type AnswerBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Headers that lead to other hosts or back to this one.
const LINKS: [HeaderName; 4] = [header::LOCATION, header::CONTENT_LOCATION, header::LINK, header::REFRESH];
/// Encodings in which the letters of ASCII are those of ASCII, by how their names begin.
const CHARSETS: [&str; 6] = ["utf-8", "utf8", "us-ascii", "ascii", "iso-8859-", "windows-125"];
/// Headers that lead away from plain HTTP.
const AWAY: [HeaderName; 2] = [header::STRICT_TRANSPORT_SECURITY, header::ALT_SVC];

/// `ports`: those at which this host speaks TLS.
pub fn mask(
    mut response: Response<Incoming>,
    name: &str,
    ports: &[u16],
    finder: Arc<Finder>,
) -> Result<Response<AnswerBody>, &'static str> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err("it switched protocols unasked");
    }
    if [StatusCode::PARTIAL_CONTENT, StatusCode::IM_USED].contains(&response.status()) {
        return Err("it answers with a part, though that was not asked for, and cannot be searched for the secret");
    }
    if !response.body().is_end_stream() && !is_as_it_is(response.headers()) {
        return Err("its answer is compressed or in an encoding without ASCII, and cannot be searched for the secret");
    }
    // The reason phrase and the case of names are the host's words too.
    response.extensions_mut().clear();
    let headers = response.headers_mut();
    let closes = in_connection(headers).any(|name| name == "close");
    end_connection(headers);
    AWAY.iter().for_each(|name| drop(headers.remove(name)));
    for link in LINKS {
        if let header::Entry::Occupied(mut values) = headers.entry(link) {
            values.iter_mut().for_each(|value| lead_back(value, name, ports));
        }
    }
    mask_headers(&finder, headers);
    if closes {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|body| mask_body(body, finder)))
}

/// Overwrites secrets in the values of headers. A header with one in its name goes.
fn mask_headers(finder: &Arc<Finder>, headers: &mut HeaderMap) {
    let holds = |name: &&HeaderName| !finder.all(name.as_str().as_bytes()).is_empty();
    let bad: Vec<HeaderName> = headers.keys().filter(holds).cloned().collect();
    bad.iter().for_each(|name| drop(headers.remove(name)));
    for value in headers.values_mut() {
        let mut bytes = value.as_bytes().to_vec();
        finder.all(&bytes).into_iter().for_each(|secret| bytes[secret].fill(b'*'));
        *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("*"));
    }
}

/// The body with the secrets overwritten, byte for byte, so that lengths stay true. What comes after it is left out.
fn mask_body(body: Incoming, finder: Arc<Finder>) -> AnswerBody {
    if body.is_end_stream() {
        return body.boxed_unsync();
    }
    let begin = Some((body, Search::new(finder, true)));
    let stream = try_unfold(begin, |state| async move {
        let Some((mut body, mut search)) = state else { return Ok(None) };
        while let Some(frame) = body.frame().await.transpose()? {
            let Ok(bytes) = frame.into_data() else { continue };
            let ready = search.push(&bytes);
            if !ready.is_empty() {
                return Ok(Some((Frame::data(ready.into()), Some((body, search)))));
            }
        }
        Ok(Some((Frame::data(search.finish().into()), None)))
    });
    StreamBody::new(stream).boxed_unsync()
}

/// Whether the bytes of the body are those of the content.
fn is_as_it_is(headers: &HeaderMap) -> bool {
    let all = |name, good: &str| {
        let values = headers.get_all(name).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
        values.map(<[u8]>::trim_ascii).all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case(good.as_bytes()))
    };
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    let kind = String::from_utf8_lossy(&kind);
    let charset = kind.split("charset").skip(1).all(|rest| {
        let charset = rest.trim_start_matches([' ', '\t', '=', '"', '\'']);
        CHARSETS.iter().any(|known| charset.starts_with(known))
    });
    let whole = !kind.contains("byteranges") && charset;
    all(header::CONTENT_ENCODING, "identity") && all(header::TRANSFER_ENCODING, "chunked") && whole
}

/// `https://NAME` becomes `http://NAME` where a URL begins.
fn lead_back(value: &mut HeaderValue, name: &str, ports: &[u16]) {
    const HTTPS: &str = "https://";
    let Ok(text) = value.to_str() else { return };
    let (lower, mut written, mut done) = (text.to_ascii_lowercase(), String::new(), 0);
    for (at, _) in lower.match_indices(HTTPS).filter(|(at, _)| begins_url(&lower[..*at])) {
        if let Some(length) = authority(&lower[at + HTTPS.len()..], name, ports) {
            written = written + &text[done..at] + "http://" + name;
            done = at + HTTPS.len() + length;
        }
    }
    *value = HeaderValue::from_str(&(written + &text[done..])).unwrap_or(HeaderValue::from_static(""));
}

/// Whether a URL of its own follows this text, rather than a part of another one.
fn begins_url(before: &str) -> bool {
    before.is_empty() || before.ends_with(['<', '"', '\'']) || before.ends_with("url=") && !before.contains('?')
}

/// The length of this name, with one of these ports, where the text begins with it.
fn authority(text: &str, name: &str, ports: &[u16]) -> Option<usize> {
    let length = text.find(|c| "/?#<>\"' ,;\t".contains(c)).unwrap_or(text.len());
    let (host, port) = match text[..length].split_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (&text[..length], 443),
    };
    (host == name && ports.contains(&port)).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_the_host_lead_back_through_the_relay() {
        for (link, expected) in [
            ("https://a.test/x?y#z", "http://a.test/x?y#z"),
            ("HTTPS://A.test:443", "http://a.test"),
            ("https://a.test:9/", "https://a.test:9/"),
            ("https://a.test.evil.test/", "https://a.test.evil.test/"),
            ("https://a.test@evil.test/", "https://a.test@evil.test/"),
            ("https://b.test/?to=https://a.test/", "https://b.test/?to=https://a.test/"),
            ("<https://a.test/2>; rel=\"next\", <https://a.test>", "<http://a.test/2>; rel=\"next\", <http://a.test>"),
            ("5; url=https://a.test/x", "5; url=http://a.test/x"),
        ] {
            let mut value = HeaderValue::from_static(link);
            lead_back(&mut value, "a.test", &[443, 8443]);
            assert_eq!(value, expected);
        }
    }
}
