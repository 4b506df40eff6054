"""Connects to each target (host, port) in turn; answers with "ok", or with how it failed."""
import json, socket, sys

out = []
for host, port in json.load(sys.stdin)["targets"]:
    try:
        s = socket.create_connection((host, port), 8)
        s.settimeout(8)
        s.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() if port == 80 else b"x")
        out.append("ok" if s.recv(1) else "closed")
    except (socket.gaierror, ValueError):
        out.append("no name")
    except ConnectionResetError:
        out.append("reset")
    except OSError as e:
        out.append("refused" if e.errno in (111, 101, 113, 13) else str(e))
print(json.dumps(out))
