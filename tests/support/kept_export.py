"""What is kept of a Nsight export: `python -m tests.support.kept_export EXPORT.sqlite... FOLDER`.

Names of files, the environment and short calls of the system go; what traceprof says stays the
same. `FOLDER/NAME.sqlite.xz` comes of each, and their steps come into `FOLDER/times.json`, which
the program that was recorded wrote.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
import sys
import tempfile
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

import traceprof

_TABLES = (
    "StringIds", "CUPTI_ACTIVITY_KIND_*", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_*", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "ENUM_CUDA_*",
)  # fmt: skip
_GOES = (
    ("StringIds", "instr(CAST(value AS BLOB), CAST('/' AS BLOB)) > 0"),
    ("META_DATA_EXPORT", "name LIKE '%PATH%'"),
    ("OSRT_API", "end - start < 10000"),
)


def keep(export: Path, kept: Path) -> None:
    """Write what is kept of an export, compressed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.sqlite"
        with closing(sqlite3.connect(path)) as database:
            database.execute("ATTACH ? AS source", (str(export),))
            tables = database.execute("SELECT name, sql FROM source.sqlite_master").fetchall()
            for name, sql in tables:
                if any(fnmatchcase(name, pattern) for pattern in _TABLES):
                    database.execute(sql)
                    database.execute(f'INSERT INTO main."{name}" SELECT * FROM source."{name}"')
            has = {name for name, _ in tables}
            for table, condition in _GOES:
                if table in has:
                    database.execute(f"DELETE FROM main.{table} WHERE {condition}")
            database.commit()
            database.execute("VACUUM main")
        kept.write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    """Keep exports, and note how long their steps are."""
    *exports, folder = map(Path, sys.argv[1:])
    times = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    for export in exports:
        keep(export, folder / f"{export.stem}.sqlite.xz")
        with closing(traceprof.analyze(export)) as analysis:
            headline = analysis.result.headline
        assert headline is not None
        times[export.stem]["recorded"] = [round(headline.step_ns / 1e3, 1)]
    (folder / "times.json").write_text(json.dumps(times, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
