"""Floods the host in the way that is asked for: its streams, its staged files, or the values of an answer."""
import json, os, sys, time

does = json.load(sys.stdin)["do"]
os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/out")
# Answers within the limit whose values are many times as large as their text.
answers = {
    "numbers": lambda: "[" + "1," * 500000 + "1]",
    "objects": lambda: "[" + '{"a":[]},' * 100000 + "1]",
    "levels": lambda: "[" * 120 + "1," * 500000 + "1" + "]" * 120,
}
if does == "quiet":
    time.sleep(0.3)
elif does == "flood":
    os.set_blocking(1, False)
    for _ in range(3000):
        for fd in (2, 1):
            try:
                os.write(fd, b"x" * 65536)
            except OSError:
                pass
elif does == "logs":
    for _ in range(1500):
        os.write(2, b"word " * 13000 + b"\n")
elif does == "large":
    with open("large.csv", "wb") as f:
        for _ in range(96):
            f.write(b"x" * (1 << 20))
elif does == "many":
    for n in range(30000):
        os.close(os.open("n%0200d" % n, os.O_CREAT | os.O_WRONLY))
print(answers[does]() if does in answers else 1)
