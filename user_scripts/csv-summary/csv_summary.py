"""Summarises a CSV file: rows, columns, and per column what it holds. Shows `entryPoint`: no stdin, no stdout."""

import csv
import io
import statistics
from pathlib import Path

DATA = Path(__file__).parent / "data"


def summarize(file="sales.csv", text=None, delimiter=","):
    """The arguments are the manifest's parameters; what is returned is the answer."""
    source = text if text is not None else (DATA / file).read_text(encoding="utf-8-sig")
    rows = list(csv.reader(io.StringIO(source), delimiter=delimiter))
    if not rows:
        raise ValueError("the CSV is empty; it needs at least a header line")
    header, body = rows[0], [row for row in rows[1:] if row]
    uneven = sum(len(row) != len(header) for row in body)
    if uneven:
        print(f"{uneven} of {len(body)} rows have another number of fields than the header")  # goes to the log
    columns = [column(name, [row[i] for row in body if i < len(row)]) for i, name in enumerate(header)]
    return {"rows": len(body), "columns": columns}


def column(name, values):
    filled = [value for value in values if value.strip()]
    summary = {"name": name, "type": "text", "empty": len(values) - len(filled), "distinct": len(set(filled))}
    try:
        numbers = [float(value) for value in filled]
    except ValueError:
        return summary
    if not numbers or any(number - number != 0 for number in numbers):  # nan and inf are not figures
        return summary
    return summary | {
        "type": "number",
        "min": min(numbers),
        "max": max(numbers),
        "mean": round(statistics.fmean(numbers), 6),
    }
