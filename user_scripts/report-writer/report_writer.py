"""Writes rows to out/<name>.csv. Shows a staged write: the file appears only if the whole call succeeds."""

import csv
import json
import sys
from pathlib import Path

OUT = Path(__file__).parent / "out"


def main():
    request = json.load(sys.stdin)
    rows = request["rows"]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    OUT.mkdir(exist_ok=True)
    file = OUT / f"{request['name']}.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps({"file": f"out/{file.name}", "rows": len(rows), "columns": columns}))


main()
