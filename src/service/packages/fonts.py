# Run by the interpreter of a built environment, as a call would run it: the list of fonts that matplotlib keeps.
import json
import os

try:
    import matplotlib.font_manager

    folder = matplotlib.get_cachedir()
    names = [name for name in os.listdir(folder) if name.startswith("fontlist-") and name.endswith(".json")]
except Exception:
    names = []
found = None
if names:
    with open(os.path.join(folder, names[0]), encoding="utf-8") as file:
        found = [names[0], file.read()]
print(json.dumps(found))
