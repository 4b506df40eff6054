"""Writes `files`, puts `away` what is named there, and stays until the file `until` is there."""
import errno, json, os, sys, time

given = json.load(sys.stdin)
got = {}


def tries(path, act):
    try:
        act()
        got[path] = "ok"
    except OSError as e:
        got[path] = errno.errorcode[e.errno]


def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w").write(text)


for path, text in given.get("files", {}).items():
    tries(path, lambda: write(path, text))
while given.get("until") and not os.path.exists(given["until"]):
    time.sleep(0.01)
for path in given.get("away", []):
    tries(path, lambda: os.rename(path, path + "-away"))
print(json.dumps(got))
