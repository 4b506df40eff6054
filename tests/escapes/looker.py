"""What can be done with each path of the input, and every pipe below /.toolhost. (`w` tells nothing of a pipe: without
a reader it is not opened for writing alone.)"""
import json, os, stat, sys
def tried(flags, path):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK))
        return True
    except OSError:
        return False
given = json.load(sys.stdin)
out = {p: 'r' * tried(os.O_RDONLY, p) + 'w' * tried(os.O_WRONLY, p) + 'p' * tried(os.O_RDWR, p) for p in given['look']}
for path in given.get('make', []):
    out['make ' + path] = tried(os.O_WRONLY | os.O_CREAT | os.O_EXCL, path)
inside = [os.path.join(d, f) for d, _, fs in os.walk('/.toolhost') for f in fs]
out['pipes'] = [p for p in inside if stat.S_ISFIFO(os.stat(p).st_mode)]
out['kept'] = [os.listdir(d) for d, _, _ in os.walk('/.toolhost/kept')]
print(json.dumps(out))
