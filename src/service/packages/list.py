# Run by the interpreter of a built environment, as a call would run it: which distributions it finds on its path, also in
# archives. Code of packages may have run before this, and can add to the list only what policy then judges.
import importlib.metadata
import json

found = [(each.metadata["Name"], each.version, str(each.locate_file(""))) for each in importlib.metadata.distributions()]
print(json.dumps([{"name": name, "version": version or "", "path": path} for name, version, path in found if name]))
