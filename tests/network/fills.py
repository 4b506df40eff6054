"""Fills connections to a host that reads nothing until more than `enough` bytes wait to be sent,
for `seconds` at most: a kernel that is short of memory for sockets makes each of them wait. Answers how many bytes waited at most."""
import array, fcntl, json, socket, sys, termios, time
given, kept, waiting = json.load(sys.stdin), [], array.array("i", [0])
def fill(s):
    try:
        while s.send(bytes(65536)): pass
    except (BlockingIOError, ConnectionError):
        pass
def waits(s):
    fcntl.ioctl(s, termios.TIOCOUTQ, waiting)
    return waiting[0]
most, until = 0, time.monotonic() + given["seconds"]
while most <= given["enough"] and time.monotonic() < until:
    # What the relay has passed on meanwhile leaves room for more.
    for s in kept: fill(s)
    for _ in range(min(50, 900 - len(kept))):
        try:
            s = socket.create_connection(("api.example.com", 9001), 1)
        except OSError:
            break
        s.setblocking(False)
        kept.append(s)
        fill(s)
    time.sleep(0.02)
    # The relay goes on: what waited a moment ago may have left since.
    most = max(most, sum(map(waits, kept)))
print(most)
