"""Copies from and to pageable memory: what they carried, and what they cost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.claims import results_of
from tests.support.kept_claims import Kept
from traceprof.analyses import pageable_copy
from traceprof.run.opening import Window

MIB = 1 << 20


judged = partial(results_of, pageable_copy.run)


@pytest.mark.parametrize("size", [4, 65_536])
def test_small_copies_do_not_count(tmp_path: Path, size: int) -> None:
    builder = TraceBuilder().memcpy(0, 100, "DtoH", bytes=size, pageable=True)
    (result,) = judged(builder.write(tmp_path))
    assert (result.metrics.num_copies, pageable_copy.findings(result)) == (0, [])


def a_batch() -> TraceBuilder:
    """The copy costs 50 ns alone, and the idle time inside its call 30.

    GPU   |= kernel =|    |== copy ==|             0-100, 150-250
                              |= kernel =======|   200-400
    host       [ copy call 120-240 ]
    """
    builder = TraceBuilder().kernel(0, 100)
    builder.memcpy(150, 250, "HtoD", bytes=MIB, pageable=True, launch=(120, 240))
    return builder.kernel(200, 400, stream=8, launch=(0, 1))


def beside_pinned_ones() -> TraceBuilder:
    builder = TraceBuilder().memcpy(0, 100, "DtoH", bytes=MIB, pageable=True)
    return builder.memcpy(100, 150, "DtoH", bytes=2 * MIB).memcpy(150, 151, "HtoD", bytes=MIB)


def without_a_launch() -> TraceBuilder:
    builder = TraceBuilder().memcpy(0, 100, "HtoD", pageable=True, launch=False)
    return builder.kernel(100, 101)


def of_unknown_memory() -> TraceBuilder:
    return TraceBuilder().memcpy(0, 100).without("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind")


def hidden() -> TraceBuilder:
    return TraceBuilder().kernel(0, 1000).memcpy(100, 800, "HtoD", pageable=True, stream=8)


def without_copies() -> TraceBuilder:
    return TraceBuilder().kernel(0, 9)


PROGRAMS = (
    *(a_batch, beside_pinned_ones, without_a_launch, of_unknown_memory, hidden, without_copies),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Callable[[], TraceBuilder], tmp_path: Path, kept: Kept) -> None:
    (result,) = judged(program().write(tmp_path))
    kept(pageable_copy.findings(result))


def test_copies_that_start_outside_the_window_do_not_count(tmp_path: Path, kept: Kept) -> None:
    builder = TraceBuilder()
    for start in (0, 100, 200):
        builder.memcpy(start, start + 50, "HtoD", pageable=True)
    (result,) = judged(builder.write(tmp_path), Window(10, 130))
    kept(pageable_copy.findings(result))
