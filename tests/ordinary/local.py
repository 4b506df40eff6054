# What a tool with sockets of its own tries: within its call, and beyond it.
import errno, http.server, json, multiprocessing, os, socket, struct, sys, tempfile, threading, urllib.request
from concurrent.futures import ProcessPoolExecutor


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *args):
        pass


class Six(http.server.HTTPServer):
    address_family = socket.AF_INET6


def square(x):
    return x * x


def remember(notes):
    notes["a"] = 1


def forkserver():
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(abs, range(-2, 1))) == [2, 1, 0]


def manager():
    context = multiprocessing.get_context("fork")
    with context.Manager() as served:
        notes = served.dict()
        process = context.Process(target=remember, args=(notes,))
        process.start()
        process.join()
        assert dict(notes) == {"a": 1}


def server(kind=http.server.HTTPServer, host="127.0.0.1"):
    served = kind((host, 0), Hello)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    at = f"[{host}]" if ":" in host else host
    assert urllib.request.urlopen(f"http://{at}:{served.server_port}/", timeout=5).read() == b"hello"


def listening(path):
    with socket.socket(socket.AF_UNIX) as s, socket.socket(socket.AF_UNIX) as t:
        s.bind(path)
        s.listen()
        t.connect(path)
        s.accept()[0].close()


def reached(family, at, sends=b"GET / HTTP/1.0\r\n\r\n"):
    with socket.socket(family) as s:
        s.settimeout(5)
        s.connect(at)
        s.sendall(sends)


def answered(at):
    with socket.socket() as s:
        s.settimeout(5)
        s.connect(at)
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        if not s.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, "")


def resolved(kind, name):
    # RFC 1035: over TCP a message has its length before it.
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = struct.pack(">6H", 1, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, kind) as s:
        s.settimeout(5)
        s.connect(("198.18.0.1", 53))
        framed = kind == socket.SOCK_STREAM
        s.sendall(struct.pack(">H", len(query)) + query if framed else query)
        answers = struct.unpack_from(">4H", s.recv(600), 2 if framed else 0)[3]
        if not answers:
            raise OSError(errno.ENOENT, "")


def descriptor(name):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect("\0" + name)
        (folder,) = socket.recv_fds(s, 1, 1)[1]
        os.listdir(folder)


def main():
    given = json.loads(sys.stdin.read())
    said = {}
    for name, run in {
        "forkserver": forkserver,
        "manager": manager,
        "server": server,
        "server by IPv6": lambda: server(Six, "::1"),
        "file": lambda: listening(tempfile.mkdtemp() + "/s"),
        "host": lambda: reached(socket.AF_INET, ("127.0.0.1", given["tcp"])),
        "host abstract": lambda: reached(socket.AF_UNIX, "\0" + given["abstract"]),
        "in a write tree": lambda: listening("out/s"),
        "descriptor": lambda: descriptor(given["descriptors"]),
        "name": lambda: resolved(socket.SOCK_DGRAM, "api.example.com"),
        "name by TCP": lambda: resolved(socket.SOCK_STREAM, "api.example.com"),
        "another name": lambda: resolved(socket.SOCK_DGRAM, "www.example.com"),
        "another name by TCP": lambda: resolved(socket.SOCK_STREAM, "www.example.com"),
        "names elsewhere": lambda: answered(("127.0.0.1", 53)),
        "relay": lambda: answered(("127.0.0.1", given["relay"])),
        "relay elsewhere": lambda: answered(("45.20.0.1", given["relay"])),
    }.items():
        try:
            run()
            said[name] = "ok"
        except OSError as error:
            said[name] = errno.errorcode.get(error.errno, str(error))
        except Exception as error:
            said[name] = repr(error)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
