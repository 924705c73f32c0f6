"""Notes about the data of a run."""

from pathlib import Path

from tests.support.builders import TraceBuilder
from traceprof.analysis import Options, analyze_reports
from traceprof.trace.nsight import schema


def test_ranks_on_the_same_gpu_are_named(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for pid, gpu, device in [(1000, "a", 0), (1050, "b", 0), (1100, "a", 0), (1100, "c", 1)]:
        builder.kernel(pid, pid + 100, pid=pid, device=device)
        row = {"gpuId": ord(gpu), "cudaId": device, "pid": pid, "uuid": f"GPU-{gpu}"}
        builder.raw(schema.CUDA_DEVICES, **row)
    result = analyze_reports([builder.write(tmp_path / "run.sqlite")], Options(savings=False))
    assert [note for _, note in result.notes if "same GPU" in note] == [
        "ranks 0, 2 run on the same GPU: while it is idle for one, it may work for another"
    ]
