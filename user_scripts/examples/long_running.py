"""Sleeps, to show what a time limit does."""

import json
import sys
import time

seconds = json.load(sys.stdin).get("seconds", 20)
time.sleep(seconds)
print(json.dumps({"slept": seconds}))
