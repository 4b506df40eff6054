# What a tool with granted hosts tries. Outside the layers (`outside` in the input) most of it succeeds.
import ctypes, errno, json, socket, struct, sys

given = json.load(sys.stdin)
said = {}
IPV4, IPV6, STREAM, DATAGRAM = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
STUB = "127.0.0.1" if given["outside"] else "198.18.0.1"
API = b"\3api\7example\3com\0"


def attempt(name, run):
    try:
        said[name] = run() or "done"
    except OSError as e:
        said[name] = errno.errorcode.get(e.errno, str(e))


def made(*what):
    def run():
        socket.socket(*what).close()
    return run


def connected(address, port, family=IPV4):
    s = socket.socket(family, STREAM)
    s.settimeout(5)
    s.connect((address, port))
    return s


def option(level, name, value, kind=STREAM):
    def run():
        with socket.socket(IPV4, kind) as s:
            s.setsockopt(level, name, value)
    return run


def listen():
    with socket.socket() as s:
        s.listen()


def bind(kind):
    def run():
        with socket.socket(IPV4, kind) as s:
            s.bind(("127.0.0.1", 0))
    return run


def pair(path):
    a, b = socket.socketpair()
    a.connect(path)


def buffer():
    with socket.socket() as s:
        before = s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        if s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == before:
            return f"{before} stays"


def early():
    with socket.socket() as s:
        s.sendto(b"x", 0x20000000, (STUB, given["tcp"]))


def many_early():
    # sendmmsg(2) of one empty message.
    with socket.socket() as s:
        message = ctypes.create_string_buffer(64)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sendmmsg(s.fileno(), message, 1, 0x20000000) < 0:
            raise OSError(ctypes.get_errno(), "")


def own_datagrams(to, control=()):
    one, other = socket.socket(IPV4, DATAGRAM), socket.socket(IPV4, DATAGRAM)
    one.settimeout(0.2)
    one.sendto(b"", (STUB, given["udp"] if given["outside"] else 53))
    other.sendmsg([b"x"], control, 0, (to, one.getsockname()[1]))
    one.recv(9)


def datagram(address, port):
    def run():
        with socket.socket(IPV4, DATAGRAM) as s:
            s.sendto(b"x", (address, port))
    return run


def ask(name, kind):
    # Response code and number of answers of the stub, which says the same by UDP and by TCP.
    def run():
        question = b"\0\1\1\0\0\1\0\0\0\0\0\0" + name + struct.pack(">HH", kind, 1)
        with socket.socket(IPV4, DATAGRAM) as s, connected(STUB, 53) as t:
            s.settimeout(5)
            s.sendto(question, (STUB, 53))
            one = s.recv(512)
            t.sendall(struct.pack(">H", len(question)) + question)
            other = t.recv(512)[2:]
        said = [f"{answer[3] & 15} {struct.unpack('>H', answer[6:8])[0]}" for answer in (one, other)]
        return said[0] if said[0] == said[1] else str(said)
    return run


if not given["outside"]:
    for kind in (1, 28, 16, 65, 33, 255):
        attempt(f"dns granted {kind}", ask(API, kind))
    attempt("dns refused", ask(b"\4evil\7example\3net\0", 1))
    attempt("dns longer", ask(b"\3api\7example\3com\4corp\7example\0", 1))
    attempt("dns data", ask(b"\6secret\4evil\7example\3net\0", 16))
attempt("host tcp", lambda: connected("127.0.0.1", given["tcp"]) and None)
attempt("host tcp mapped", lambda: connected("::ffff:127.0.0.1", given["tcp"], IPV6) and None)
attempt("host udp", datagram("127.0.0.1", given["udp"]))
attempt("udp elsewhere", datagram("127.0.0.1", 9))
attempt("udp out", datagram("45.20.0.1", 9999))
attempt("udp to another resolver", datagram("45.20.0.2", 53))
attempt("udp out by IPv6", lambda: socket.socket(IPV6, DATAGRAM).sendto(b"x", ("2a0b::1", 9999)) and None)
attempt("own datagrams", lambda: own_datagrams("127.0.0.1"))
attempt("icmp datagram", made(IPV4, DATAGRAM, socket.IPPROTO_ICMP))
attempt("raw", made(IPV4, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet", made(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("netlink", made(socket.AF_NETLINK, socket.SOCK_RAW, 4))
attempt("vsock", made(getattr(socket, "AF_VSOCK", 40), STREAM, 0))
attempt("unix", made(socket.AF_UNIX, STREAM))
attempt("mptcp", made(IPV4, STREAM, 262))
attempt("pair to abstract", lambda: pair("\0" + given["abstract"]))
attempt("bind tcp", bind(STREAM))
attempt("bind udp", bind(DATAGRAM))
attempt("listen", listen)
attempt("data with the first packet", early)
attempt("many with the first packet", many_early)
attempt("to a device", option(socket.SOL_SOCKET, 25, b"lo\0"))
attempt("filter", option(socket.SOL_SOCKET, 26, struct.pack("HxxxxxxQ", 1, 0)))
attempt("congestion", option(socket.IPPROTO_TCP, 13, b"reno"))
attempt("options of packets", option(socket.IPPROTO_IP, 4, b"\x01\x01\x01\x00"))
attempt("multicast", option(socket.IPPROTO_IP, 35, socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1"), DATAGRAM))
attempt("receive buffer", buffer)
for name in given["settings"]:
    said[name] = open(f"/proc/sys/net/ipv4/{name}").read().split()
said["resolv"] = open("/etc/resolv.conf").read()
json.dump(said, sys.stdout)
