"""Record the training of `programs/train.py` on two CPU ranks, for tests that read real recordings.

`python -m tests.support.make_recordings` writes `recordings/two_cpu_ranks.sqlite.xz`, with
Nsight Systems 2023.4, and a trace of each rank, with torch.profiler. Every recording differs: one
that is in the repository stays as it is unless a test needs another.
"""

from __future__ import annotations

import gzip
import lzma
import re
import sqlite3
import sys
import tempfile
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

from tests.support.recording import ROOT, recorded

FOLDER = Path(__file__).with_name("recordings")
NAME = "two_cpu_ranks"
_STEPS, _RECORDED = 18, "10:16"
_PROGRAM = ROOT / "tests" / "support" / "programs" / "train.py"


def record(tool: str, folder: Path) -> Path:
    """Record with `nsys` or `torch`, and return the folder of the recording."""
    target = folder / tool
    training = ("-m", "torch.distributed.run", "--nproc-per-node", "2", str(_PROGRAM))
    command = (sys.executable, *training, "--steps", str(_STEPS), "--truth", str(folder))
    code, printed = recorded(target, tool, *command, options=("--steps", _RECORDED))
    assert code == 0, printed
    return target


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
    """Write an export without names of files, the environment and short calls of the system.

    What traceprof says of it stays the same.
    """
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
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (export,) = record("nsys", Path(folder)).glob("*.sqlite")
        keep(export, FOLDER / f"{NAME}.sqlite.xz")
        traces = sorted(record("torch", Path(folder)).glob("*.pt.trace.json.gz"))
        for rank, trace in enumerate(traces):
            text = gzip.decompress(trace.read_bytes()).decode()
            name = f"{NAME}-rank{rank}.pt.trace.json"
            text = re.sub(r'"traceName": "[^"]*"', f'"traceName": "{name}"', text)
            (FOLDER / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
