"""Asks the name server by raw messages: odd names, more names than a call may have, more lookups, more connections."""
import json, socket, struct, sys, time

json.load(sys.stdin)
STUB = ("198.18.0.1", 53)
W = [b"wild", b"example"]


def query(*labels, kind=1):
    name = b"".join(bytes([len(label)]) + label for label in labels)
    return b"\7\7\1\0\0\1" + bytes(6) + name + struct.pack(">BHH", 0, kind, 1)


def answer(s, text):
    s.sendall(struct.pack(">H", len(text)) + text)
    length = struct.unpack(">H", s.recv(2, socket.MSG_WAITALL))[0]
    return s.recv(length, socket.MSG_WAITALL)


def ask(s, text):
    return answer(s, text)[3] & 15


def opened():
    s = socket.create_connection(STUB, 8)
    s.settimeout(8)
    return s


def ends(text):
    try:
        s = opened()
        s.sendall(text)
        return s.recv(1) == b""
    except OSError:
        return True


s = opened()
names = [[b"a.wild.example"], [b"x.wild", b"example"], [b"x\0"] + W, [b"*"] + W, [b"b\xc3\xbc"] + W, [b"x\\.y"] + W,
         [b"x y"] + W, [b"-x"] + W, [], [b"localhost"], [b"127", b"0", b"0", b"1"], b"1.0.0.127.in-addr.arpa".split(b".")]
odd = [ask(s, query(*name)) for name in names]
kinds = [list(answer(s, query(b"n1", *W, kind=k))[3:8:2]) for k in (28, 65, 64, 33, 15, 16, 255, 252, 5, 12)]
one, other = (answer(s, query(n, *W)) for n in (b"n1", b"N1"))
same = [one[-4:] == other[-4:] != bytes(4), [k for k in kinds if k[0] & 15 or k[2]]]
codes = [ask(s, query(b"n%d" % (n % 257), *W)) for n in range(10002)]
more = [opened() for _ in range(7)]
served = [ask(m, query(b"n1", *W)) for m in more]
ninth = ends(b"")
for m in more + [s]:
    m.close()
time.sleep(0.2)
long = [ends(length + bytes(600)) for length in (b"\xff\xff", b"\2\1")]
print(json.dumps([odd, same, [codes[n] for n in (0, 255, 256, 257, 9975, 9976)], served, ninth, long]))
