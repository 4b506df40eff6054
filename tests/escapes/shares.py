"""Takes of what the kernel counts for all programs of a user."""

import ctypes, json, os, select, signal, sys, time

wanted = json.load(sys.stdin)
n, kept = 0, []
if "signals" in wanted:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 2])
    while ctypes.CDLL(None).sigqueue(os.getpid(), signal.SIGRTMIN + 2, None) == 0:
        n += 1
else:
    pipes = [os.dup(0) for _ in range(400)]
    while n < wanted["watches"]:
        if n % len(pipes) == 0:
            kept.append(select.epoll())
        kept[-1].register(pipes[n % len(pipes)], 1)
        n += 1
    # They are counted after some work, and each look needs a moment.
    while time.process_time() < 0.5:
        pass
    time.sleep(wanted["seconds"])
print(n)
