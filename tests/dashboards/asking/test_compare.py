"""The rank and the step of a recording that a comparison draws first."""

from dashboards.asking.compare import recording
from tests.support.known import known
from tests.support.opened import analysis_of
from tests.support.traces import SAMPLE
from traceprof.comparison.sides import loaded
from traceprof.documents.analysis.model import Document
from traceprof.documents.analysis.records import document

UNEVEN = SAMPLE.with_stem("uneven-clock")


def plain_choice(capture: Document) -> tuple[int, int]:
    """Return the rank whose median step is the longest, and that step, in plain Python."""
    judged = {row.rank: (row.start_ns, row.end_ns) for row in capture.training}
    choices = []
    for rank, (begin, end) in judged.items():
        lengths = sorted(
            (row.window_ns, row.step)
            for row in capture.steps
            if row.rank == rank and begin <= row.start_ns and row.end_ns <= end
        )
        length, step = lengths[len(lengths) // 2]
        choices.append((-length, rank, step))
    _, rank, step = min(choices)
    return rank, step


def test_the_median_step_of_the_slowest_rank_is_drawn() -> None:
    with analysis_of(SAMPLE.with_stem("host-stall")) as analysis:
        side = known(recording(loaded([analysis])))
        assert (side.rank, side.step) == plain_choice(document(analysis.result))


def test_without_training_and_steps_all_of_the_capture_is_drawn() -> None:
    with analysis_of(UNEVEN) as analysis:
        capture = document(analysis.result)
    capture.training, capture.steps = [], []
    side = known(recording(loaded([capture])))
    spans = {row.rank: (row.window_start_ns, row.window_ns) for row in capture.breakdown}
    assert {rank.rank: rank.judged for rank in side.ranks} == {
        rank: (start, start + length) for rank, (start, length) in spans.items()
    }
    longest = max(spans, key=lambda rank: (spans[rank][1], -rank))
    assert (side.rank, side.step) == (longest, None)
