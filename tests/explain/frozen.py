# Renames keep the count of a live folder busy, which stops the call to look; a stopped child stays stopped.
import os, signal, time
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
os.kill(child, signal.SIGSTOP)
rounds, until = 0, time.monotonic() + 1.5
while time.monotonic() < until:
    for n in range(20):
        with open('out/x%d' % n, 'wb') as f:
            f.write(bytes(65536))
        os.rename('out/x%d' % n, 'out/y%d' % n)
    rounds += 1
os.kill(child, signal.SIGKILL)
print(rounds)
