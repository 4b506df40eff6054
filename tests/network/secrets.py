"""Talks with the host of a key. `requests`: one after the other; answers for each with the status, the body and the
headers, as text. `pair`: two, as bytes, over one connection where that is possible: the first with a body. `listens`:
reads until an event has come, for 3 s at most, and tells it backwards."""
import http.client, json, socket, ssl, sys

given = json.load(sys.stdin)
HOST = "api.example.com"


def ask(g):
    kind = http.client.HTTPSConnection if g.get("tls") else http.client.HTTPConnection
    try:
        c = kind(HOST, timeout=8)
        c.request(g.get("method", "GET"), g["path"], g.get("body"), g.get("headers", {}))
        r = c.getresponse()
        return {"status": r.status, "body": r.read().decode(), "headers": dict(r.getheaders())}
    except (OSError, http.client.HTTPException) as e:
        return {"status": 0, "body": type(e).__name__ + str(getattr(e, "partial", ""))}


def connected():
    s = socket.create_connection((HOST, given["port"]), 8)
    if given["port"] == 443:
        s = ssl.create_default_context().wrap_socket(s, server_hostname=HOST)
    s.settimeout(8)
    return s


def pair():
    out, s = [], connected()
    for text in given["pair"]:
        for _ in range(2):
            try:
                s.sendall(text.encode())
                b = s.recv(65536)
                if b:
                    break
            except OSError:
                pass
            s = connected()
        out.append(b.decode("latin1")[:12])
    return out


def listen():
    c = http.client.HTTPConnection(HOST, timeout=3)
    c.request("GET", given["listens"])
    r, b = c.getresponse(), b""
    try:
        while not b.endswith(b".\n\n") and (d := r.read1(4096)):
            b += d
    except OSError:
        pass
    return {"got": b.decode()[::-1]}


print(json.dumps(pair() if "pair" in given else listen() if "listens" in given else [ask(g) for g in given["requests"]]))
