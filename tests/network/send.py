"""Sends bytes (hex) to a port of the granted host, for each case by a connection of its own, and answers with the
beginning of what comes back: "reset" or "closed" where nothing does. There are pauses between the pieces of a case. At
port 80 who closes its half is gone."""
import json, socket, sys, time

out = []
for port, pieces in json.load(sys.stdin)["cases"]:
    s = socket.create_connection(("api.example.com", port), 8)
    s.settimeout(8)
    try:
        for n, piece in enumerate(pieces):
            time.sleep(0.05 if n else 0)
            s.sendall(bytes.fromhex(piece))
        port == 80 or s.shutdown(socket.SHUT_WR)
        b = b""
        while len(b) < 65536:
            try:
                d = s.recv(65536)
            except socket.timeout:
                d = b""
            if not d:
                break
            b += d
            s.settimeout(1 if port == 80 else 8)
        out.append(b.decode("latin1") or "closed")
    except OSError:
        out.append("reset")
print(json.dumps(out))
