//! Network: a component may import sockets and `wasi:http`, and gets none of it.

use super::*;
use crate::harness::components;

#[tokio::test]
async fn no_socket_is_ever_made() {
    for (probe, word) in [
        (json!({"do": "connect", "path": "127.0.0.1", "n": 80}), "access-denied"),
        (json!({"do": "listen", "n": 80}), "access-denied"),
        (json!({"do": "datagram"}), "access-denied"),
        (json!({"do": "connect", "path": "localhost", "n": 80}), "permanent-resolver-failure"),
    ] {
        let tool = Tool::new(components::sockets(&probe).expect("a deed of sockets"));
        assert_eq!(tool.ending(json!({})).await, Ending::answer(&json!({"did": word})), "{probe}");
    }
}

#[tokio::test]
async fn a_request_is_refused_as_data_and_never_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("does not wait");
    let to = listener.local_addr().expect("bound").to_string();
    // Some, in time, an error, and that is 15: HTTP-request-denied.
    assert_eq!(Tool::new(components::request(&to)).ending(json!({})).await, Ending::answer(&json!(10_115)));
    assert!(listener.accept().is_err(), "nobody connected");
    std::net::TcpStream::connect(to).expect("control: who connects");
    assert!(listener.accept().is_ok(), "control: is heard");
}
