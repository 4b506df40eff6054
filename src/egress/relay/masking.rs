//! The answer of a host with the secrets of a call overwritten, byte for byte, so that lengths stay true.

use crate::base::mask::{Finder, Hide, Search};
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Stands for each byte of a secret.
const HIDDEN: u8 = b'*';

/// Hides secrets in the values of headers. A header with one in its name goes.
pub fn headers(finder: &Arc<Finder>, headers: &mut HeaderMap) {
    let holds = |name: &&HeaderName| !finder.all(name.as_str().as_bytes()).is_empty();
    let bad: Vec<HeaderName> = headers.keys().filter(holds).cloned().collect();
    bad.iter().for_each(|name| drop(headers.remove(name)));
    for value in headers.values_mut() {
        let mut bytes = value.as_bytes().to_vec();
        finder.all(&bytes).into_iter().for_each(|secret| bytes[secret].fill(HIDDEN));
        *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("*"));
    }
}

/// A body with the secrets hidden.
pub struct Masked<B> {
    inner: B,
    finder: Arc<Finder>,
    search: Search,
    /// What comes after the body.
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl<B> Masked<B> {
    pub fn new(inner: B, finder: Arc<Finder>) -> Masked<B> {
        let search = Search::new(Arc::clone(&finder), Hide::Length);
        Masked { inner, finder, search, trailers: None, ended: false }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Masked<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        while !self.ended {
            let ready = match ready!(Pin::new(&mut self.inner).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(bytes)) => self.search.push(&bytes),
                last => {
                    self.ended = true;
                    self.trailers = last.and_then(|frame| frame.err()?.into_trailers().ok());
                    let Masked { finder, trailers, .. } = &mut *self;
                    trailers.iter_mut().for_each(|trailers| headers(finder, trailers));
                    self.search.finish()
                }
            };
            if !ready.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(ready.into()))));
            }
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.search.held() == 0 && self.trailers.is_none() && (self.ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.inner.size_hint(), self.search.held() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(held));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(held)) {
            hint.set_upper(upper);
        }
        hint
    }
}
