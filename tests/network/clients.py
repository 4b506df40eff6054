"""Unmodified programs and libraries, by name: each reads `url` and answers with the `at` of the host, or fails."""
import asyncio, json, socket, ssl, subprocess, sys, urllib.parse, urllib.request

given = json.load(sys.stdin)
url = given["url"]
u = urllib.parse.urlsplit(url)
tls = u.scheme == "https"
port = u.port or (443 if tls else 80)


def of_urllib():
    return urllib.request.urlopen(url, timeout=5).read()


def of_asyncio():
    async def main():
        r, w = await asyncio.open_connection(u.hostname, port, ssl=tls or None)
        w.write(f"GET / HTTP/1.1\r\nHost: {u.hostname}\r\nConnection: close\r\n\r\n".encode())
        head = await r.readuntil(b"\r\n\r\n")
        return await r.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
    return asyncio.run(main())


def of_socket():
    s = socket.create_connection((u.hostname, port), 5)
    s = ssl.create_default_context().wrap_socket(s, server_hostname=u.hostname) if tls else s
    s.sendall(f"GET / HTTP/1.0\r\nHost: {u.hostname}\r\n\r\n".encode())
    b = b""
    while b.count(b"}") < 2:
        b += s.recv(65536)
    return b.split(b"\r\n\r\n")[1]


def of_curl():
    return subprocess.run(["curl", "-sS", "--max-time", "5", url], capture_output=True, check=True).stdout


print(json.dumps(json.loads(globals()["of_" + given["client"]]())["at"]))
