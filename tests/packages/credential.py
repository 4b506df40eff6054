import json, os, plain, urllib.request
found = []
if "s3cret" in json.dumps(dict(os.environ)): found.append("environment")
files = ["/proc/%s/%s" % (process, name) for process in ["self", 1] for name in ["environ", "cmdline"]]
for base in [os.path.dirname(plain.__file__), "/tmp", HOME]:
    files += [os.path.join(folder, name) for folder, _, names in os.walk(base) for name in names]
for file in files:
    try:
        if b"Key+with" in open(file, "rb").read(1 << 20): found.append(file)
    except OSError: pass
try:
    urllib.request.urlopen("http://api.example.com/simple/plain/", timeout=5)
    found.append("the index")
except OSError: pass
print(json.dumps([plain.version, found]))
