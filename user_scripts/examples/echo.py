"""Returns the message it was given: the smallest tool there is."""

import json
import sys

print(json.dumps({"received_message": json.load(sys.stdin).get("message")}))
