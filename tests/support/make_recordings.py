"""Record the training of `programs/train.py` on two CPU ranks, for tests that read real recordings.

`python -m tests.support.make_recordings` writes `recordings/two_cpu_ranks.sqlite.xz`, with
Nsight Systems 2023.4, and a trace of each rank, with torch.profiler. Every recording differs: one
that is in the repository stays as it is unless a test needs another.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.support.commands import ended
from tests.support.kept_export import keep
from tests.support.recording import ROOT

FOLDER = Path(__file__).with_name("recordings")
NAME = "two_cpu_ranks"
_STEPS, _RECORDED = 18, "10:16"
_PROGRAM = ROOT / "tests" / "support" / "programs" / "train.py"


def record(tool: str, folder: Path) -> Path:
    """Record with `nsys` or `torch`, and return the folder of the recording."""
    recording = folder / tool
    recording.mkdir()
    python = [sys.executable, "-m"]
    training = ["torch.distributed.run", "--nproc-per-node", "2", str(_PROGRAM)]
    options = ["--with", tool, "--steps", _RECORDED, "-o", str(recording / "out")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = ended(
        *(*python, "traceprof", "record", *options, "--", *python, *training),
        *("--steps", str(_STEPS), "--truth", str(recording)),
        env=environ,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return recording / "out"


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
