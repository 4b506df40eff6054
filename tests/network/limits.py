"""What a networked call does until it is bounded: the deed `do`, `n` times or bytes of it."""
import concurrent.futures, json, os, socket, sys, time, urllib.request

given = json.load(sys.stdin)
n = given.get("n", 0)
API = "api.example.com"


def download():
    came = 0
    with urllib.request.urlopen("http://%s/bytes/%d" % (API, n), timeout=60) as f:
        while b := f.read(1 << 20):
            came += len(b)
    return came


def spend():
    """Downloads until it has taken `n` ms of processor time itself."""
    with urllib.request.urlopen("http://%s/bytes/%d" % (API, 1 << 40), timeout=60) as f:
        while sum(os.times()[:2]) * 1000 < n:
            assert f.read(1 << 20)
    return n


def spin():
    """Takes `n` ms of processor time without the network."""
    while sum(os.times()[:2]) * 1000 < n:
        pass
    return n


def upload():
    left, b = n, b"x" * 65536
    s = socket.create_connection((API, 80), 8)
    s.sendall(b"POST /upload HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: %d\r\n\r\n" % n)
    while left > 0:
        s.sendall(b[:left])
        left -= len(b)
    s.settimeout(30)
    return "200" in s.recv(100).decode()


def slow():
    return len(urllib.request.urlopen("http://%s/slow" % API).read())


def keep():
    """Connections that stay open: how many were made, and how many failed."""
    kept, failed = [], 0
    for _ in range(n):
        s = socket.socket()
        s.settimeout(5)
        kept.append(s)
        try:
            s.connect((API, 7000))
            s.sendall(b"x")
            assert s.recv(1)
        except (OSError, AssertionError):
            failed += 1
    return [n - failed, failed]


def use():
    """Connections of which sixty are open at one time."""
    def one(_):
        try:
            with socket.create_connection((API, 7000), 20) as s:
                s.sendall(b"x")
                return len(s.recv(1))
        except OSError:
            return 0
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        return sum(pool.map(one, range(n)))


def hang():
    """Begins connections to a host that never answers; says whether another host is reached in 3 s then."""
    kept = []
    at = socket.gethostbyname("closed.example.com") if n else None
    for _ in range(n):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((at, 7000))
        kept.append(s)
    s = socket.create_connection((API, 7000), 3)
    s.settimeout(3)
    s.sendall(b"x")
    try:
        return {"reached": bool(s.recv(1))}
    except OSError:
        return {"reached": False}


def half_close():
    s = socket.create_connection((API, 7000), 5)
    s.sendall(b"hello ")
    s.shutdown(socket.SHUT_WR)
    b = b""
    while d := s.recv(100):
        b += d
    return b.decode()


def leave(keeps=False):
    """Makes requests that a host never answers, leaves those connections or keeps them, and makes one more."""
    def ask(path):
        s = socket.create_connection((API, 80), 5)
        s.settimeout(5)
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: {API}\r\n\r\n".encode())
        return s
    kept = [ask("/silent") for _ in range(n)]
    time.sleep(2)
    for s in kept if not keeps else []:
        s.close()
    time.sleep(2)
    try:
        return ask("/x").recv(12).decode()
    except OSError:
        return "reset"


def stay():
    return leave(keeps=True)


def wait():
    s = socket.create_connection((API, 7000), 5)
    s.settimeout(20)
    try:
        s.sendall(b"x")
        while s.recv(1):
            pass
        return "closed"
    except OSError:
        return "reset"


print(json.dumps(globals()[given["do"]]()))
