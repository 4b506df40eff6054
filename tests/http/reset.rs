//! A connection that is reset before the server looks at it: what was sent on it can still be read,
//! and its address may be another's by then.

use super::hostile::status;
use super::{Web, adder, exchanged, request};
use crate::prelude::*;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, setsockopt, socket,
    sockopt,
};
use std::os::fd::{AsRawFd, OwnedFd};
use toolhost::base::files;

const STRANGER: u32 = 12399;
const LOCAL: [u8; 4] = [127, 0, 0, 1];

/// A connection of this user from this address of this machine and this port, or any; and the port.
pub fn from(web: &Web, uid: u32, [a, b, c, d]: [u8; 4], port: u16) -> (TcpStream, u16) {
    let made = || -> std::io::Result<OwnedFd> {
        let fd = socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrIn::new(a, b, c, d, port))?;
        let server = web.address.rsplit(':').next().unwrap().parse().unwrap();
        connect(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, server))?;
        Ok(fd)
    };
    let fd = files::as_owner((uid, uid), made).unwrap();
    let port = getsockname::<SockaddrIn>(fd.as_raw_fd()).unwrap().port();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, port)
}

#[test]
fn who_has_the_address_of_a_reset_connection_did_not_send_what_came_on_it() {
    if !is_root() {
        return skipped(1, "another user's connection needs root");
    }
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        adder(&playground);
        let web = Web::start(&playground, &[]);
        let owner = who.uid().unwrap_or(0);
        let body = json!({"mode": "async", "arguments": {"a": 1, "b": 2}}).to_string();
        let asked = request(
            "POST",
            "/v1/tools/esc:add/calls",
            &web.address,
            &["Connection: keep-alive"],
            &body,
        );
        let healthy = request("GET", "/healthz", &web.address, &[], "");
        let calls = || web.calls(&[]).len();
        // The controls: the same request of each, on a connection that lives.
        let mut told = 0;
        wait_for("a stranger, who has one second to ask, is told", || {
            let (stranger, _) = from(&web, STRANGER, LOCAL, 0);
            told = status(&exchanged(stranger, asked.as_bytes()));
            told != 0
        });
        assert_eq!(told, 403, "{who:?}");
        let last = asked.replace("keep-alive", "close");
        assert_eq!(
            status(&exchanged(from(&web, owner, LOCAL, 0).0, last.as_bytes())),
            202,
            "{who:?}"
        );
        within(Duration::from_secs(30), "it ran", || {
            playground.records().len() == 1
        });
        assert_eq!(calls(), 1, "{who:?}");
        // A server that is busy for a moment accepts later; the stranger's bytes came first.
        web.signal(Signal::SIGSTOP);
        let (mut stranger, port) = from(&web, STRANGER, LOCAL, 0);
        stranger.write_all(asked.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        setsockopt(
            &stranger,
            sockopt::Linger,
            &nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            },
        )
        .unwrap();
        drop(stranger);
        let (own, _) = from(&web, owner, LOCAL, port);
        web.signal(Signal::SIGCONT);
        assert_eq!(
            status(&exchanged(own, healthy.as_bytes())),
            200,
            "{who:?}: that one is served"
        );
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(
            (calls(), playground.records().len()),
            (1, 1),
            "{who:?}: and nothing of the stranger's ran"
        );
        within(Duration::from_secs(10), "the log says so", || {
            web.said().contains("refused: unknown user")
        });
    }
}
