# Opens its own script again and again, until that fails or its time is over.
import errno, json, os, sys, time
said = 'opened'
until = time.monotonic() + json.load(sys.stdin)['s']
while time.monotonic() < until:
    try:
        os.close(os.open(__file__, os.O_RDONLY))
    except OSError as e:
        said = errno.errorcode[e.errno]
        break
    time.sleep(0.01)
print(json.dumps(said))
