import json, os

seen = []
for folder, folders, files in os.walk('/', followlinks=False):
    folders[:] = [name for name in folders if os.path.join(folder, name) != '/proc']
    if any(folder == s or folder.startswith(s + '/') for s in json.loads(os.environ['SYSTEM'])):
        folders[:] = []
        continue
    seen += [os.path.join(folder, name) for name in folders + files]
print(json.dumps({'root': sorted(os.listdir('/')), 'seen': seen}))
