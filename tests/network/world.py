"""A small internet in network namespaces: a name server and hosts that write down whoever comes.

Started in fresh network and mount namespaces, which become the outside. Makes a second pair, the inside, in which
toolhost runs: its only way out is the outside. Prints the pid whose namespaces are the inside, and serves until stdin
ends. Arguments: a folder with world.json, ca.pem, host.pem (certificate and key), private.pem (of another root); log.txt is written there.
"""
import asyncio
import json
import os
import ssl
import struct
import subprocess
import sys
from dressed import another, dressed

FOLDER = sys.argv[1]
WORLD = json.load(open(f"{FOLDER}/world.json"))
LOG = open(f"{FOLDER}/log.txt", "a", buffering=1)
INSIDE, OUTSIDE = "45.10.0.2", "45.10.0.1"
asked = {}


def run(*words):
    subprocess.run(words, check=True)


def log(*words):
    print(*words, file=LOG)


def build():
    inside = subprocess.Popen(["unshare", "-n", "-m", "sleep", "100000"])
    ours = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{inside.pid}/ns/net") == ours or open(f"/proc/{inside.pid}/comm").read() != "sleep\n":
        pass
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "w0", "type", "veth", "peer", "name", "w1", "netns", str(inside.pid))
    run("ip", "addr", "add", f"{OUTSIDE}/24", "dev", "w0")
    run("ip", "link", "set", "w0", "up")
    for address in WORLD["addresses"]:
        run("ip", "addr", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo")
    run("ip", "-6", "addr", "add", "2a0a::1/64", "dev", "w0", "nodad")

    def within(*words):
        run("nsenter", "-t", str(inside.pid), "-n", "-m", *words)

    within("ip", "link", "set", "lo", "up")
    within("ip", "addr", "add", f"{INSIDE}/24", "dev", "w1")
    within("ip", "link", "set", "w1", "up")
    within("ip", "route", "add", "default", "via", OUTSIDE)
    within("ip", "-6", "addr", "add", "2a0a::2/64", "dev", "w1", "nodad")
    within("ip", "-6", "route", "add", "default", "via", "2a0a::1")
    # Addresses that no interface has, and that are this machine's all the same.
    within("ip", "route", "add", "local", "45.30.0.0/24", "dev", "lo")
    within("ip", "-6", "route", "add", "local", "2a0c::/64", "dev", "lo")
    within("ip", "route", "add", "unreachable", "45.40.0.0/24")
    within("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start")
    open(f"{FOLDER}/resolv.conf", "w").write(f"nameserver {OUTSIDE}\nsearch corp.example\noptions timeout:1 attempts:1\n")
    open(f"{FOLDER}/hosts", "w").write("127.0.0.1 localhost\n" + WORLD.get("hosts", ""))
    for own, place in [("resolv.conf", "/etc/resolv.conf"), ("hosts", "/etc/hosts"),
                       ("ca.pem", "/etc/ssl/certs/ca-certificates.crt")]:
        if os.path.exists(place):
            within("mount", "--bind", f"{FOLDER}/{own}", os.path.realpath(place))
    return inside


# A name server (RFC 1035). A record is a list of addresses, a list of such lists (one for each question in turn), "NAME" for
# a CNAME, or "silent".
def answer(query):
    number, flags, questions = struct.unpack(">HHH", query[:6])
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode("latin1").lower())
        at += query[at] + 1
    kind = struct.unpack(">H", query[at + 1:at + 3])[0]
    question = query[12:at + 5]
    name = ".".join(labels)
    log("dns", name, {1: "A", 28: "AAAA"}.get(kind, kind))
    record = WORLD["names"].get(name)
    records, owner = [], b"\xc0\x0c"
    while isinstance(record, str) and record != "silent":
        target = b"".join(bytes([len(l)]) + l.encode() for l in record.split(".")) + b"\0"
        records.append(owner + struct.pack(">HHIH", 5, 1, 0, len(target)) + target)
        owner, record = target, WORLD["names"].get(record)
    if record == "silent":
        return None
    if record and isinstance(record[0], list):
        turn = asked[name, kind] = asked.get((name, kind), -1) + 1
        record = record[min(turn, len(record) - 1)]
    for address in record or []:
        v6 = ":" in address
        if kind == (28 if v6 else 1):
            import socket
            data = socket.inet_pton(socket.AF_INET6 if v6 else socket.AF_INET, address)
            records.append(owner + struct.pack(">HHIH", kind, 1, 0, len(data)) + data)
    code = 0 if record is not None or records else 3
    return struct.pack(">HHHHHH", number, 0x8180 | code, 1, len(records), 0, 0) + question + b"".join(records)


class Names(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        reply = answer(data)
        if reply:
            self.transport.sendto(reply, peer)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, port):
        self.port = port

    def datagram_received(self, data, peer):
        log("udp", self.port, peer[0], data[:50])


async def head(reader):
    lines = []
    while True:
        line = await reader.readline()
        if line in (b"\r\n", b"\n", b""):
            return lines
        lines.append(line.decode("latin1").rstrip("\r\n"))


# /bytes/N: N bytes; /redirect?to=URL: there; …/overlooks: a body is read as the next request; /upload: reads the body and says how long it was; /slow: half an answer, and no more; /silent: no answer;
# /v1/dressed: its key and another, in each dress; /v1/says?page=HEX: that, with its key and a long text where they are
# named; /v1/waits?page=HEX: that, until its client goes; anything else: what came.
async def http(reader, writer, scheme):
    at = writer.get_extra_info("sockname")[0].removeprefix("::ffff:")
    try:
        while lines := await head(reader):
            fields = {k.lower(): v.strip() for k, v in (l.split(":", 1) for l in lines[1:] if ":" in l)}
            path = lines[0].split(" ")[1] if " " in lines[0] else ""
            keyed = ["with the key"] if "Key+with" in str(lines) else []
            log(scheme, at, lines[0], "Host:", fields.get("host"), *keyed)
            body, status, more = None, "200 OK", ""
            length = 0 if path.endswith("/overlooks") else int(fields.get("content-length", 0))
            got = 0
            while got < length:
                piece = await reader.read(min(65536, length - got))
                if not piece:
                    return
                got += len(piece)
            if fields.get("transfer-encoding") == "chunked":
                while size := int((await reader.readline()).strip() or b"0", 16):
                    got += len(await reader.readexactly(size + 2)) - 2
                await reader.readline()
            if path.startswith("/bytes/"):
                total = int(path.split("/")[2])
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
                piece = b"x" * 65536
                while total > 0:
                    writer.write(piece[:total])
                    total -= len(piece)
                    await writer.drain()
                continue
            if path.startswith("/redirect?to="):
                status, more = "302 Found", f"Location: {path.split('?to=', 1)[1]}\r\n"
            if path in ("/slow", "/silent"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf" if path == "/slow" else b"")
                await writer.drain()
                await asyncio.sleep(100)
            if path.startswith(("/v1/says?page=", "/v1/waits?page=")):
                key = fields.get("authorization", "").removeprefix("Bearer ")
                said = bytes.fromhex(path.split("page=", 1)[1]).decode()
                writer.write(said.replace("{KEY}", key).replace("{LONG}", "0123456789" * 40000).encode())
                await writer.drain()
                if "/waits" in path:
                    await reader.read(1)
                return
            told = {"at": at, "request": lines[0], "headers": fields, "lines": lines[1:], "body": got}
            body = json.dumps(told).encode()
            if path == "/v1/dressed":
                key = fields.get("authorization", "").removeprefix("Bearer ")
                own, other = dressed(key), dressed(another(key))
                more = "".join(f"X-{kind}-{n}: {form}\r\n" for kind, forms in (("Own", own), ("Other", other))
                               for n, form in enumerate(forms.values()) if "\n" not in form)
                body = "\0".join(f"{name}\0{own[name]}\0{other[name]}" for name in own).encode()
            writer.write(f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError, ValueError):
        pass
    finally:
        writer.close()


# Gives back what comes, and ends after its other end did.
async def echo(reader, writer):
    at = writer.get_extra_info("sockname")
    log("tcp", at[0].removeprefix("::ffff:"), at[1])
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.write(b"bye")
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


# Reads nothing.
async def deaf(_, writer):
    await asyncio.sleep(1000)


async def serve(inside):
    loop = asyncio.get_running_loop()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(f"{FOLDER}/host.pem")
    tls.sni_callback = lambda _, name, __: log("sni", name) if "evil" in str(name) else None
    await loop.create_datagram_endpoint(Names, local_addr=(OUTSIDE, 53))
    for port in (9, 9999):
        await loop.create_datagram_endpoint(lambda port=port: Datagrams(port), local_addr=("0.0.0.0", port))
    for port in (80, 7080):
        await asyncio.start_server(lambda r, w: http(r, w, "http"), ["0.0.0.0", "::"], port, backlog=2000)
    await asyncio.start_server(lambda r, w: http(r, w, "https"), ["0.0.0.0", "::"], 443, ssl=tls, backlog=2000)
    await asyncio.start_server(lambda r, w: http(r, w, "https"), ["0.0.0.0", "::"], 8443, ssl=tls, backlog=2000)
    private = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    private.load_cert_chain(f"{FOLDER}/private.pem")
    await asyncio.start_server(lambda r, w: http(r, w, "https"), ["0.0.0.0", "::"], 9443, ssl=private, backlog=2000)
    for port in (22, 5432, 7000, 8080):
        await asyncio.start_server(echo, ["0.0.0.0", "::"], port, backlog=2000)
    await asyncio.start_server(deaf, ["0.0.0.0", "::"], 9001, limit=1, backlog=2000)
    print(inside.pid, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


inside = build()
try:
    asyncio.run(serve(inside))
finally:
    inside.kill()
