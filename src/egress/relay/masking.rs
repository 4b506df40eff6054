//! Masking: hides the secrets of a call in what a host answers, also where they stand in base64, in a URL, in JSON or in HTML.
//!
//! For: answers. In: the values of secrets; bytes, in pieces. Out: as many bytes, `*` where a secret stood. Never: lets a
//! part of a secret out before what follows is known; any other form of a secret is not found.
//!
//! So many bytes are always held back as the longest form has, less one. Holding back only what begins like a secret
//! would tell a tool, whose host repeats its words, how far a guess is right.

use crate::base::encodings;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, PatternID};
use bytes::{Bytes, BytesMut};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Stands for each byte of a secret, so that lengths stay true.
const HIDDEN: u8 = b'*';
/// Most bytes of all forms, and shortest form.
const MOST: usize = 256 * 1024;
const SHORTEST: usize = 4;

/// All forms of some secrets, in letters of either case.
pub struct Mask {
    forms: NFA,
    start: StateID,
    longest: usize,
}

/// A place in bytes that come one after another.
#[derive(Clone, Copy)]
struct Place(StateID);

impl Mask {
    /// `None`: they are too long, or too short to be hidden.
    pub fn of<'v>(values: impl Iterator<Item = &'v str>) -> Option<Mask> {
        let mut forms = Vec::new();
        // A header's value begins and ends without blanks (RFC 9110, 5.5).
        for value in values.map(str::trim) {
            if value.len() < SHORTEST || value.len() > MOST {
                return None;
            }
            let quoted = serde_json::to_string(value).ok()?;
            let inside = &quoted[1..quoted.len() - 1];
            forms.extend([value.to_owned(), inside.to_owned(), inside.replace('/', "\\/")]);
            forms.extend(encodings::of(value).into_iter().filter(|form| form.len() >= SHORTEST));
        }
        if forms.iter().map(String::len).sum::<usize>() > MOST {
            return None;
        }
        let longest = forms.iter().map(String::len).max().unwrap_or(1);
        let forms = NFA::builder().ascii_case_insensitive(true).build(&forms).ok()?;
        let start = forms.start_state(Anchored::No).ok()?;
        Some(Mask { forms, start, longest })
    }

    /// Hides the forms that end in the bytes from `from` on; what is before them was looked at.
    fn hide(&self, place: &mut Place, bytes: &mut [u8], from: usize) {
        for at in from..bytes.len() {
            place.0 = self.forms.next_state(Anchored::No, place.0, bytes[at]);
            if self.forms.is_match(place.0) {
                let length = |index| self.forms.pattern_len(self.forms.match_pattern(place.0, index) as PatternID);
                let longest = (0..self.forms.match_len(place.0)).map(length).max().unwrap_or(0);
                bytes[(at + 1).saturating_sub(longest)..=at].fill(HIDDEN);
            }
        }
    }

    fn hidden(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        self.hide(&mut Place(self.start), &mut bytes, 0);
        bytes
    }

    /// Hides them in the values of headers. A header with one in its name goes.
    pub fn headers(&self, headers: &mut HeaderMap) {
        let holds = |name: &&HeaderName| self.hidden(name.as_str().as_bytes()) != name.as_str().as_bytes();
        let bad: Vec<HeaderName> = headers.keys().filter(holds).cloned().collect();
        bad.iter().for_each(|name| drop(headers.remove(name)));
        for value in headers.values_mut() {
            *value = HeaderValue::from_bytes(&self.hidden(value.as_bytes())).unwrap_or(HeaderValue::from_static("*"));
        }
    }
}

/// A body with the secrets hidden.
pub struct Masked<B> {
    inner: B,
    mask: Arc<Mask>,
    place: Place,
    held: BytesMut,
    /// What comes after `held`.
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl<B> Masked<B> {
    pub fn new(inner: B, mask: Arc<Mask>) -> Masked<B> {
        let place = Place(mask.start);
        Masked { inner, mask, place, held: BytesMut::new(), trailers: None, ended: false }
    }

    /// Takes bytes in, and gives those out that no secret can begin in any more.
    fn pass(&mut self, bytes: &[u8]) -> Bytes {
        let from = self.held.len();
        self.held.extend_from_slice(bytes);
        self.mask.hide(&mut self.place, &mut self.held, from);
        let ready = (self.held.len() + 1).saturating_sub(self.mask.longest);
        self.held.split_to(ready).freeze()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Masked<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        while !self.ended {
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(bytes)) => {
                    let bytes = self.pass(&bytes);
                    if !bytes.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                }
                last => {
                    self.ended = true;
                    let trailers = last.and_then(|frame| frame.err()?.into_trailers().ok());
                    self.trailers = trailers.map(|mut trailers| {
                        self.mask.headers(&mut trailers);
                        trailers
                    });
                }
            }
        }
        if !self.held.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.held.split().freeze()))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.trailers.is_none() && (self.ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.inner.size_hint(), self.held.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(held));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(held)) {
            hint.set_upper(upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::convert::Infallible;

    const SECRET: &str = "s3cret/Value+\"1";

    struct Pieces(VecDeque<Frame<Bytes>>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    fn masked(pieces: impl Iterator<Item = Frame<Bytes>>) -> (String, Option<HeaderMap>) {
        let mask = Arc::new(Mask::of([SECRET, "value"].into_iter()).expect("a mask"));
        let body = Masked::new(Pieces(pieces.collect()), mask);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let collected = runtime.block_on(body.collect()).expect("a body");
        let trailers = collected.trailers().cloned();
        (String::from_utf8(collected.to_bytes().to_vec()).expect("text"), trailers)
    }

    fn pieces(text: &str, length: usize) -> impl Iterator<Item = Frame<Bytes>> {
        text.as_bytes().chunks(length).map(|piece| Frame::data(Bytes::copy_from_slice(piece)))
    }

    #[test]
    fn only_secrets_of_some_length_can_be_hidden() {
        assert!(Mask::of(["abc  "].into_iter()).is_none());
        assert!(Mask::of([&*"x".repeat(MOST)].into_iter()).is_none());
        assert!(Mask::of([].into_iter()).is_some());
    }

    #[test]
    fn trailers_are_masked_and_names_too() {
        let trailers = [("x-a", "1 s3cret/value+\"1."), ("x-value", "1"), ("x-b", "2")];
        let trailers =
            trailers.into_iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
        let frames = pieces("abc", 1).chain([Frame::trailers(trailers.collect())]);
        let (body, trailers) = masked(frames);
        let shown: Vec<_> = trailers
            .expect("trailers")
            .into_iter()
            .map(|(name, value)| (name.expect("a name").to_string(), value))
            .collect();
        let hidden = format!("1 {}.", "*".repeat(SECRET.len()));
        assert_eq!(body, "abc");
        assert_eq!(
            shown,
            [("x-a".to_owned(), hidden.parse().expect("a value")), ("x-b".to_owned(), "2".parse().expect("a value"))]
        );
    }

    proptest! {
        #[test]
        fn a_secret_is_hidden_wherever_pieces_end(before in "[a-z \"]{0,40}", after in "[a-z ]{0,200}", form in 0..12usize, length in 1..80usize) {
            let forms: Vec<String> = encodings::of(SECRET).into_iter().chain([SECRET.to_owned(), SECRET.to_uppercase(), r#"s3cret\/Value+\"1"#.to_owned()]).collect();
            let form = &forms[form % forms.len()];
            let text = format!("{before}{form}{form}{after}");
            let (shown, _) = masked(pieces(&text, length));
            prop_assert_eq!(shown.len(), text.len());
            let secret = before.len()..before.len() + 2 * form.len();
            prop_assert_eq!(&shown[secret.clone()], "*".repeat(secret.len()));
            let before = before.replace("value", "*****");
            prop_assert_eq!(&shown[..secret.start], before);
        }

        #[test]
        fn how_much_is_held_back_says_nothing(text in "[s3cret/Value+1]{0,300}") {
            let mask = Arc::new(Mask::of([SECRET].into_iter()).expect("a mask"));
            let mut body = Masked::new(Pieces(VecDeque::new()), Arc::clone(&mask));
            let out: usize = text.as_bytes().chunks(7).map(|piece| body.pass(piece).len()).sum();
            prop_assert_eq!(out, text.len().saturating_sub(mask.longest - 1));
        }
    }
}
