"""Unpacks an archive as its names say; prints what came out of the folder, what is a link, and names that fold."""
import io, os, stat, sys, tarfile, urllib.request, zipfile
text = urllib.request.urlopen(sys.argv[1]).read()
into = os.path.join(sys.argv[2], os.path.basename(sys.argv[1]), "a", "b", "c")
entries = []
if sys.argv[1].endswith(".whl"):
    archive = zipfile.ZipFile(io.BytesIO(text))
    for entry in archive.infolist():
        link = stat.S_ISLNK(entry.external_attr >> 16)
        entries.append((entry.filename, link, archive.read(entry)))
else:
    archive = tarfile.open(fileobj=io.BytesIO(text))
    for entry in archive:
        link = entry.issym()
        # As npm has it, without the first folder.
        name = entry.name.split("/", 1)[1]
        entries.append((name, link, entry.linkname.encode() if link else archive.extractfile(entry).read()))
said = []
for name, link, content in entries:
    place = os.path.join(into, name)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if link:
        os.symlink(content.decode(), place)
        said.append(name + " ->")
        continue
    with open(place, "wb") as file:
        file.write(content)
    if not os.path.realpath(place).startswith(into + "/"):
        said.append(os.path.basename(name))
    if sum(other.lower() == name.lower() for other, _, _ in entries) > 1 and os.path.basename(name) in os.listdir(os.path.dirname(place)):
        said.append(name)
print(" ".join(sorted(said)))
