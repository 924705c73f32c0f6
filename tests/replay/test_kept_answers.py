"""What `traceprof whatif` prints of samples, programs and recordings is kept as text.

A report is named after a sample, a program of the second simulator or a recording of a GPU, and
what it lacks.
"""

from pathlib import Path
from shutil import copyfile

import pytest

from tests.reference.gpu_programs import PROGRAMS
from tests.support.changes import damaged
from tests.support.commands import printed
from tests.support.kept_claims import KeptText
from tests.support.traces import SAMPLES

RECORDINGS = [*SAMPLES, *(Path(__file__).parents[1] / "gpu" / "recordings").rglob("*.pt.trace.*")]
ASKED = {
    "accumulating.sqlite": (
        "link=2x no-overlap-slowdown communication=0 kernel:gemm=0.5x bucket-cap-mb=5 "
        "bucket-cap-mb=25"
    ),
    "all-with-threads.sqlite": (
        "no-sync link=2x kernel:gemm=0.5x no-straggler no-overlap-slowdown no-data-loading "
        "--path-of=6"
    ),
    "allocation-in-steps.sqlite": "no-sync no-kernel-sync launch=0 kernel:.=0.5x",
    "busy-python.sqlite": "no-data-loading launch=0 copies-hidden no-host-stall",
    "copies.sqlite": "copies-hidden no-sync no-kernel-sync --path-of=5",
    "ddp.sqlite": (
        "kernel:cunn_sfotmax=0.5x no-host-stall half-precision equal-stages "
        "send-order=ready-first no-kernel-sync link=2x --path-of=3"
    ),
    "exposed-waiting.sqlite": "equal-kernels no-straggler kernel:gemm=2x",
    "full-precision-matmul.sqlite": "half-precision kernel:gemm=0.5x",
    "host-stall.sqlite": "no-host-stall no-straggler no-sync",
    "host-sync.sqlite": "no-sync no-kernel-sync launch=0 copies-hidden no-data-loading --path-of=3",
    "item-per-step.sqlite": "no-sync no-kernel-sync launch=0 copies-hidden --path-of=4",
    "launch-bound.sqlite": "launch=0 kernel:gemm=0.5x --path-of=3",
    "link-counters-without-synchronize-calls.sqlite": "no-sync no-data-loading kernel:.=0.5x",
    "loader-stages-fast-without-launch-calls-of-a-thread.sqlite": "no-sync kernel:gemm=0.5x",
    "loader-stages-slow.sqlite": (
        "kernel:gemm=0.01x no-data-loading no-sync copies-hidden --path-of=5"
    ),
    "loader-unmarked-even.sqlite": "kernel:gemm=0.5x no-data-loading no-sync launch=0",
    "mpi-wait.sqlite": "no-sync launch=0 kernel:.=0.5x --no-period",
    "nccl-serialization-without-stream-waits-and-event-records.sqlite": (
        "no-serialization kernel:gemm=0.5x"
    ),
    "nccl-serialization.sqlite": (
        "no-serialization link=2x kernel:gemm=0.5x bucket-cap-mb=25 communication=0"
    ),
    "offload.pt.trace.json.gz": "no-sync launch=0 copies-hidden no-data-loading kernel:.=0.5x",
    "overlap-slowdown.sqlite": (
        "communication=0 communication=0+no-overlap-slowdown no-overlap-slowdown+kernel:.=0.5x "
        "kernel:.=0.5x+no-overlap-slowdown link=2x bucket-cap-mb=10 perfect-overlap"
    ),
    "peer-copies.sqlite": "copies-hidden link=2x no-sync",
    "pinned.pt.trace.json.gz": "no-sync launch=0 copies-hidden no-data-loading",
    "pipeline-sends.sqlite": (
        "send-order=ready-first link=2x no-serialization perfect-overlap no-overlap-slowdown "
        "--path-of=2"
    ),
    "prefetch.pt.trace.json.gz": "no-sync copies-hidden no-data-loading kernel:.=0.5x",
    "stall.pt.trace.json.gz": "no-host-stall no-sync copies-hidden no-data-loading",
    "training.sqlite": (
        "no-sync no-data-loading no-launch-stall launch=0 link=2x kernel:gemm=0.5x "
        "copies-hidden communication=0 --path-of=2"
    ),
    "two-threads-slow.sqlite": "kernel:gemm=0.5x no-sync no-data-loading link=2x --path-of=5",
    "two_streams.pt.trace.json.gz": "no-sync launch=0 copies-hidden kernel:gemm=0.5x",
    "uneven-experts.sqlite": "equal-kernels no-straggler link=2x",
    "worker-slow.sqlite": "kernel:gemm=0.5x no-data-loading no-sync no-kernel-sync launch=0",
}
"""Assumptions about each report, and options."""


def write(report: Path) -> None:
    name, _, missing = report.name.partition(".")[0].partition("-without-")
    whole = report.with_name(report.name.replace(f"-without-{missing}", ""))
    if name in PROGRAMS:
        PROGRAMS[name].run(0).write(whole)
    else:
        copyfile(next(path for path in RECORDINGS if path.name == whole.name), whole)
    if missing:
        damaged(whole, report, missing.replace("-", " "))


@pytest.mark.parametrize("report", ASKED)
def test_what_is_answered(
    report: str, tmp_path: Path, kept_text: KeptText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(report))
    words = (word if word[:2] == "--" else f"--assume={word}" for word in ASKED[report].split())
    command = ["whatif", report, *words]
    kept_text(f"$ traceprof {' '.join(command)}\n{printed(*command)}")
