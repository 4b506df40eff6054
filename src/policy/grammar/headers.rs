//! What becomes of the headers of a request that gets a secret: one table for policies and the
//! relay.

/// Headers of one kind.
struct HeaderGroup {
    /// Lower-case names, separated by spaces.
    names: &'static str,
    /// A request whose rule has methods or paths may have them: they change neither.
    allowed: bool,
    /// They say how a message is read or where it goes: no secret is one of them.
    framing: bool,
    /// Removed: a part of an answer, or an answer in another encoding, could hold a secret unseen,
    /// and no headers may follow the body.
    removed: bool,
}

#[rustfmt::skip]
const GROUPS: [HeaderGroup; 6] = [
    HeaderGroup { allowed: true, framing: false, removed: false, names:
        "accept accept-language authorization baggage cache-control content-digest content-disposition content-language \
         content-location content-type cookie date dnt from if-match if-modified-since if-none-match \
         if-unmodified-since origin pragma prefer priority referer repr-digest sec-ch-ua sec-ch-ua-mobile \
         sec-ch-ua-platform sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user sec-gpc traceparent tracestate \
         upgrade-insecure-requests user-agent want-content-digest want-repr-digest" },
    HeaderGroup { allowed: true, framing: true, removed: false, names:
        "accept-encoding connection content-encoding content-length host keep-alive proxy-connection te \
         transfer-encoding" },
    HeaderGroup { allowed: true, framing: true, removed: true, names: "expect trailer" },
    HeaderGroup { allowed: true, framing: false, removed: true, names: "accept-charset if-range range" },
    HeaderGroup { allowed: false, framing: false, removed: true, names: "a-im request-range" },
    HeaderGroup { allowed: false, framing: true, removed: false, names: "http2-settings proxy-authorization upgrade" },
];

fn group(name: &str) -> Option<&'static HeaderGroup> {
    GROUPS
        .iter()
        .find(|group| group.names.split(' ').any(|known| known == name))
}

/// Whether a request whose rule has methods or paths may have the header (a lower-case name).
pub fn is_allowed(name: &str) -> bool {
    group(name).is_some_and(|group| group.allowed)
}

pub(super) fn is_framing(name: &str) -> bool {
    group(name).is_some_and(|group| group.framing)
}

/// Whether the relay removes the header from a request that gets a secret.
pub fn is_removed(name: &str) -> bool {
    group(name).is_some_and(|group| group.removed)
}
