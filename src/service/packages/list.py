# Run by the interpreter of a built environment, as a call would run it: the distributions that it finds on its path, also in
# archives. Code of packages may have run before this, and adds to the list only what policy then judges.
import importlib.metadata
import json
import os
import sys

found = []
for each in importlib.metadata.distributions():
    if each.metadata["Name"]:
        path = os.path.relpath(str(each.locate_file("")), sys.prefix)
        found.append({"name": each.metadata["Name"], "version": each.version or "", "path": path})
print(json.dumps(found))
