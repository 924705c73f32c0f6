"""Commands that are given damaged files: what they are asked, and saved analyses and stores."""

import json
import random
import shutil
import sqlite3
import zlib
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.support.fuzz.damage import alter_rows
from tests.support.traces import SAMPLE, SAMPLES
from traceprof.analysis import analyze_reports
from traceprof.cli.main import EXIT_DONE, _run
from traceprof.store import save

REPORT = "{report}"
"""In arguments, the damaged file; `{out}` is a name beside the folder that it lies in."""

_ASSUMPTIONS = (
    *("no-serialization", "no-sync", "no-straggler", "send-order=ready-first", "bucket-cap-mb=100"),
    *("launch=0", "link=2x", "kernel:.*=0.5x", "communication=0", "perfect-overlap"),
)
_OF_REPORTS = (
    *[["analyze", "--format", "json", REPORT]] * 4,
    ["info", REPORT],
    ["whatif", "--format", "json", REPORT],
    ["whatif", REPORT, "--assume", "{assumption}"],
    ["whatif", REPORT, "--path-of", "{step}"],
    ["compare", REPORT, str(SAMPLE), "--gate", "step:+2%"],
    ["compare", str(SAMPLE), REPORT, "--format", "json"],
    ["export", "csv", REPORT, "-o", "{out}"],
    ["export", "parquet", REPORT, "-o", "{out}"],
    ["export", "perfetto", REPORT, "-o", "{out}"],
    ["analyze", "--format", "html", REPORT, "-o", "{out}"],
)
_OF_STORES = (
    ["runs", REPORT],
    ["runs", REPORT, "--format", "json"],
    ["runs", REPORT, "--format", "csv"],
    ["compare", f"{REPORT}#first", f"{REPORT}#second"],
)
_OF_DOCUMENTS = (
    ["compare", REPORT, "{saved}", "--format", "json"],
    ["compare", "{saved}", REPORT, "--gate", "idle:+1%"],
    ["compare", REPORT, "{saved}", "--format", "html", "-o", "{out}"],
)
_TEXTS = (
    *("", " ", "-1:", ":", "1:0", "0:1", "9" * 400, "x", "-", "nan", "a\0b", "\ud800", "\x1b[2J"),
    *("1e999", "%", "(", "[", "*", "0.5x", "-5", "1ms:2ms", "5s", "gpu-idle", "gpu-idle,nothing"),
)
_OPTIONS = {
    "analyze": (
        *("--only", "--skip", "--steps", "--time-range", "--step-pattern", "--link-peak", "--jobs"),
        *("--communication-kernel", "--fail-on", "--name", "--label", "--format", "--kernels"),
    ),
    "whatif": ("--assume", "--path-of", "--only", "--step-pattern", "--link-peak", "--format"),
    "compare": ("--gate", "--allow-different", "--before", "--jobs", "--format", "--annotations"),
    "runs": ("--metric", "--format"),
    "explain": (),
    "info": (),
}
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**53, 2**63, -(2**63), 10**30, 0.5, 1e300, -1.5, "", "x", "\x1b[2J"),
    *([], {}, [1], {"a": 1}),
)


def saved_files(folder: Path) -> tuple[bytes, bytes]:
    """Return a saved analysis, and a store of two; the folder is left as it was."""
    document, store = folder / "saved.json", folder / "runs.db"
    assert _run(["analyze", "--format", "json", "-o", str(document), str(SAMPLE)]) == EXIT_DONE
    for name, sample in (("first", SAMPLES[0]), ("second", SAMPLES[1])):
        save(store, analyze_reports([sample]), name, {"commit": "1a2b3c4"})
    files = document.read_bytes(), store.read_bytes()
    document.unlink()
    store.unlink()
    return files


def chosen_arguments(kind: str, chosen: random.Random) -> list[str]:
    """Return the arguments of a command that is given a file of this kind."""
    if kind == "options":
        return _chosen_options(chosen)
    of_kind = {"store": _OF_STORES, "document": _OF_DOCUMENTS}.get(kind, _OF_REPORTS)
    values = {"{assumption}": chosen.choice(_ASSUMPTIONS), "{step}": str(chosen.randrange(-1, 5))}
    return [values.get(word, word) for word in chosen.choice(of_kind)]


def filled_in(arguments: list[str], report: Path, saved: Path) -> list[str]:
    out = report.parent.with_name(f"{report.parent.name}-out")
    values = {REPORT: str(report), "{out}": str(out), "{saved}": str(saved)}
    for name, value in values.items():
        arguments = [word.replace(name, value) for word in arguments]
    return arguments


def remove_output(report: Path) -> bool:
    """Remove what a command wrote beside the folder of a report; return whether it was there."""
    out = report.parent.with_name(f"{report.parent.name}-out")
    if out.is_dir():
        shutil.rmtree(out)
        return True
    was_there = out.exists()
    out.unlink(missing_ok=True)
    return was_there


def _chosen_options(chosen: random.Random) -> list[str]:
    command = chosen.choice([*_OPTIONS])
    arguments = [command, chosen.choice((REPORT, REPORT, REPORT, *_TEXTS))]
    if command == "compare":
        arguments.append(str(SAMPLE))
    for _ in range(chosen.choice((1, 1, 2, 3)) if _OPTIONS[command] else 0):
        option = chosen.choice(_OPTIONS[command])
        arguments += [option, chosen.choice(_TEXTS)]
    return arguments


def damage_store(path: Path, chosen: random.Random) -> str:
    """Change a store in SQL, or a document in it; return how."""
    if chosen.random() < 0.5:
        alter_rows(path, chosen)
        return "sql"
    with closing(sqlite3.connect(path)) as database, database:
        (packed,) = database.execute("SELECT json_zlib FROM documents").fetchone()
        if chosen.random() < 0.1:
            changed = zlib.compress(bytes(chosen.choice((10**6, 5 * 10**8))))
        else:
            changed = zlib.compress(damaged_document(zlib.decompress(packed), chosen))
        database.execute("UPDATE documents SET json_zlib = ? WHERE run = 1", [changed])
    return "document"


def damaged_document(text: bytes, chosen: random.Random) -> bytes:
    """Return a saved analysis with some values changed, removed or repeated; or bytes of it."""
    if chosen.random() < 0.2:
        data = bytearray(text)
        for _ in range(chosen.choice((1, 5, 50))):
            data[chosen.randrange(len(data))] = chosen.randrange(32, 127)
        return bytes(data)
    document = json.loads(text)
    for _ in range(chosen.choice((1, 1, 2, 5, 20))):
        _change(document, chosen)
    return json.dumps(document).encode()


def _change(document: Any, chosen: random.Random) -> None:
    """Change one value, at any depth."""
    parent: Any = document
    key: Any = None
    while True:
        if not parent:
            return
        keys = [*parent] if isinstance(parent, dict) else range(len(parent))
        key = chosen.choice(keys)
        if not isinstance(parent[key], (dict, list)) or chosen.random() < 0.15:
            break
        parent = parent[key]
    how = chosen.randrange(4)
    value = parent[key]
    if how == 0 and isinstance(parent, list):
        parent.append(deepcopy(value))
    elif how == 1:
        del parent[key]
    elif how == 2 and isinstance(value, int):
        parent[key] = value + chosen.choice((1, -1, 10**6, -(10**6), 10**15))
    else:
        parent[key] = deepcopy(chosen.choice(_VALUES))
