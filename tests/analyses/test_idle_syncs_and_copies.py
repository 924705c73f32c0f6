"""Idle time, host-sync and pageable-copy against the reference: real and generated exports."""

import random
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.reference.host import Answer, RankReference
from tests.reference.nsight_export import Export
from tests.support.builders import How, TraceBuilder
from tests.support.selection import few_and_many, for_examples
from tests.support.traces import ranks_of
from traceprof.analyses import gpu_idle, host_sync, pageable_copy
from traceprof.run.opening import Rank, Window
from traceprof.run.steady_steps import steady_steps


def answer(rank: Rank, window: Window) -> Answer:
    """Return what the three analyses say, in the reference's words."""
    idle = gpu_idle.run(rank, window)
    syncs = host_sync.run(rank, window)
    copies = pageable_copy.run(rank, window)
    assert sum(idle.by_cause.values()) == idle.metrics.idle_ns
    counts = copies.metrics
    moved = (counts.num_copies, counts.bytes, counts.host_blocked_ns, copies.cost_ns)
    return Answer(
        idle.metrics.idle_ns,
        syncs.metrics.num_syncs,
        syncs.metrics.blocked_ns,
        syncs.metrics.api,
        syncs.metrics.blocked_per_step_ns,
        moved,
    )


def steady_ranges(rank: Rank, window: Window) -> list[tuple[int, int]]:
    """Return when the host was in the steady steps; `test_training` holds these to the export."""
    ranges, steps = rank.host_steps, rank.steps
    if ranges is None or steps is None:
        return []
    source = steps.source[steady_steps(rank, window).step]
    return list(zip(ranges.start_ns[source].tolist(), ranges.end_ns[source].tolist(), strict=True))


def assert_agreement(path: Path, *cuts: tuple[float, float]) -> list[Answer]:
    """Hold the package to the reference on every rank, in its window and in parts of it.

    Returns what they say of the whole windows.
    """
    export = Export(path)
    with ranks_of(path) as ranks:
        answers = []
        for rank in ranks:
            expected = RankReference(export, rank.process, rank.key.device)
            answers.append(answer(rank, rank.window))
            assert answers[-1] == expected.answer(steady_ranges(rank, rank.window))
            for cut in cuts:
                low, high = (
                    rank.window.start_ns + int(rank.window.length_ns * share) for share in cut
                )
                ranges = steady_ranges(rank, Window(low, high))
                assert answer(rank, Window(low, high)) == expected.answer(ranges, (low, high))
        return answers


def test_agreement_on_real_traces_and_on_a_part_of_them(real_trace: Path) -> None:
    assert_agreement(real_trace, (0.31, 0.77))


CALLS = (
    "cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "cudaEventQuery_v3020", "cudaMemcpy_v3020",
    "cudaMallocAsync_v11020", "cuMemFree_v2", "cudaDeviceSynchronize_v3020",
)  # fmt: skip
RANGES = (
    "dataloader next", "load_batch", "data", "metadata", "context(", "next(loader)", "step 1",
    "step 2", "forward",
)  # fmt: skip


@st.composite
def exports(draw: st.DrawFn) -> TraceBuilder:
    """Generate two threads that launch, wait and load, some of it without launches."""
    chooser = random.Random(draw(st.integers(0, 1 << 30)))
    scale = chooser.choice((1, 5000))
    builder, some = TraceBuilder(), chooser.randrange

    def span(longest: int) -> tuple[int, int]:
        start = some(90) * scale
        return start, start + some(longest) * scale

    for number in range(some(1, 12)):
        start, end = span(12)
        call = max(start - some(14) * scale, 0)
        took = some(9) * scale
        how: How = {
            "stream": chooser.choice((7, 8)),
            "tid": chooser.choice((1000, 1001)),
            "launch": False if some(6) == 0 and number else (call, call + took),
        }
        # Without a kernel, a copy whose operation is missing counts as lost: `test_completeness`.
        kind = some(6) if number else 1
        if kind < 3:
            name = "ncclDevKernel_AllReduce_Sum(int)" if kind == 0 else "gemm(int)"
            builder.kernel(start, end, name, **how)
        elif kind == 5:
            builder.memset(start, end, **how)
        else:
            builder.memcpy(
                start, end, chooser.choice(("HtoD", "DtoH", "DtoD", "PtoP")),
                bytes=chooser.choice((4, 1 << 17)), pageable=some(3) > 0, **how,
            )  # fmt: skip
    for _ in range(some(8)):
        builder.api(chooser.choice(CALLS), *span(20), tid=chooser.choice((1000, 1001)))
    for _ in range(some(5)):
        start, end = span(40)
        open_end = None if some(7) == 0 else end
        builder.nvtx(chooser.choice(RANGES), start, open_end, tid=chooser.choice((1000, 1001)))
    return builder.shuffled(some(9))


CUTS = st.sampled_from([None, (0.2, 0.7), (-0.3, 1.4)])


@pytest.mark.slow
@few_and_many(12, 150)
def test_agreement_on_generated_exports(
    num_examples: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def check(builder: TraceBuilder, cut: tuple[float, float] | None) -> None:
        folder = tmp_path_factory.mktemp("generated")
        assert_agreement(builder.write(folder), *([cut] if cut else []))

    for_examples(num_examples, check, exports(), CUTS)
