"""Parts of a comparison that are made of two documents, by hand: communication, clocks, shares."""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.claims import DDP, LATE, document_of
from tests.support.kept_claims import KeptText
from tests.support.selection import known
from traceprof.comparison.ask import compare
from traceprof.comparison.between import BothSides
from traceprof.comparison.findings import findings
from traceprof.comparison.gates import METRICS
from traceprof.comparison.kernels import communication
from traceprof.comparison.series import Series, why_unlike
from traceprof.comparison.sides import comparable
from traceprof.documents.analysis.model import CommunicationTotals, Document, TimedSteps
from traceprof.documents.comparison import CommunicationChange, PartChange
from traceprof.reports import comparison_sections
from traceprof.run.step_ranges import StepsSource


def used(
    rank: int,
    name: str | None,
    count: int,
    ns: int,
    *,
    known: int = 0,
    operation: str = "AllReduce",
) -> CommunicationTotals:
    """Return the totals of two steps; of what is matched a fifth is waiting."""
    return msgspec.structs.replace(
        document_of(DDP).communication_totals[0], rank=rank, operation=operation,
        communicator=name, num_steps=2, count=count, bytes=None, total_ns=ns, num_matched=known,
        wait_ns=ns // 5, transfer_ns=ns - ns // 5,
    )  # fmt: skip


def changes(
    before: list[list[CommunicationTotals]], after: list[list[CommunicationTotals]]
) -> list[CommunicationChange]:
    """Compare recordings with these totals."""
    document = document_of(DDP)
    sides: list[list[Document]] = [
        [msgspec.structs.replace(document, communication_totals=rows) for rows in side]
        for side in (before, after)
    ]
    return communication(*sides)


def test_communication_is_that_of_a_step_and_rank_in_the_mean_of_recordings(
    kept_text: KeptText,
) -> None:
    """In the other recording an operation has no counterpart on other ranks."""
    one = [used(0, "a", 4, 1000, known=4), used(1, "a", 4, 3000, known=4)]
    other = [used(0, "a", 8, 3000, known=8), used(1, "a", 8, 5000, known=7)]
    kept_text("\n".join(map(str, changes([one, one], [one, other]))))


def test_communicators_of_other_names_are_matched_by_their_ranks_and_nearest_count(
    kept_text: KeptText,
) -> None:
    """The largest change is first; what is new is that of two ranks."""
    before = [
        used(0, "x", 10, 1000),
        used(0, "y", 2, 400),
        used(0, "gone", 1, 60, operation="Send"),
    ]
    after = [used(0, "q", 3, 500), used(0, "p", 9, 900), used(1, "new", 2, 8000)]
    kept_text("\n".join(map(str, changes([before], [after]))))


def test_clocks_must_be_as_certain_on_both_sides(kept_text: KeptText) -> None:
    """One report has one clock, whatever it says."""
    sides: list[tuple[list[int | None], list[int | None]]] = [
        ([5], [7]),
        ([None], [9, 9]),
        ([0, 100], [0, 1000]),
        ([0, 100], [0, 1001]),
        ([0, 3000], [0, 200, 100]),
        ([0, None], [0, 10]),
        ([0, 10], [None, None]),
        ([0, None], [None, None]),
    ]
    said = []
    for side in sides:
        documents = [document_of(DDP), document_of(LATE)]
        for document, uncertainties in zip(documents, side, strict=True):
            document.run.clocks = [
                msgspec.structs.replace(document.run.clocks[0], uncertainty_ns=value)
                for value in uncertainties
            ]
        found = comparable(documents[:1], documents[1:])
        reasons = dict(zip(found.kinds, found.reasons, strict=True))
        said.append(f"{side}: {reasons.get('clocks')}")
    kept_text("\n".join(said))


def steps_with_idle(share: float, seed: int) -> Series:
    """Return steps of different lengths, each idle for the same share."""
    lengths = np.random.default_rng(seed).uniform(1e6, 3e6, 40)
    rows = np.zeros((40, 5))
    rows[:, 0], rows[:, 4] = lengths, share * lengths
    return Series((rows,), (lengths,), {}, 0, has_steps=True)


def test_a_share_of_a_step_varies_only_where_its_steps_do() -> None:
    before, after = steps_with_idle(0.2, 0), steps_with_idle(0.3, 1)
    in_shares = known(BothSides(before, after).change("idle_ns", "pp"))
    assert (in_shares.change, *known(in_shares.judged)) == pytest.approx((10.0, 10.0, 10.0))
    in_time = known(BothSides(before, after).change("idle_ns", "ns"))
    low, high = known(in_time.judged)
    means = [float(side.captures[0][:, 4].mean()) for side in (before, after)]
    assert in_time.change == pytest.approx(means[1] - means[0])
    assert low < in_time.change < high
    assert BothSides(before, after).change("exposed_copy_ns") is None  # a share of nothing


def test_each_gate_is_about_a_part_of_its_own() -> None:
    growths = {"step": 2, "compute": 3, "exposed-communication": 5, "exposed-copy": 7, "idle": 11}
    lengths = np.array([10e6, 11e6, 12e6, 11e6])
    before, after = (
        Series((lengths[:, np.newaxis] * shares,), (lengths * shares[0],), {}, 0, has_steps=True)
        for shares in (np.ones(5), 1 + np.array([*growths.values()]) / 100)
    )
    changes = {name: BothSides(before, after).change(METRICS[name]) for name in growths}
    found = {name: change.change for name, change in changes.items() if change is not None}
    assert found == pytest.approx(growths)
    without = msgspec.structs.replace(before, has_steps=False)
    for sides in ((without, after), (after, without)):
        change = known(BothSides(*sides).change("window_ns", "ns"))
        assert abs(change.change) == pytest.approx(0.02 * 11e6)
        assert change.judged is None


def test_a_machine_without_a_name_is_unknown() -> None:
    """Two recordings that do not name their machines do not differ in them."""

    def of_host(*hosts: str) -> list[Document]:
        document = document_of(DDP)
        ranks = [
            msgspec.structs.replace(rank, host=host)
            for rank, host in zip(document.run.ranks, hosts, strict=True)
        ]
        run = msgspec.structs.replace(document.run, ranks=ranks)
        return [msgspec.structs.replace(document, run=run)]

    named, by_number = of_host("node1", "node1"), of_host("machine of report 0", "node1")
    together = of_host("the machine of these GPUs", "node1")
    (differs,) = [
        (one.before, one.after)
        for one in comparable(named, together).differences
        if one.what == "machines"
    ]
    assert differs == ("node1", "node1, unknown")
    differences = comparable(by_number, together).differences
    assert "machines" not in [one.what for one in differences]


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [(-0.1, 2, "same"), (0.1, 2, "worse"), (-0.1, 0.1, "worse"), (None, None, "worse")],
)
def test_a_finding_is_no_worse_if_its_part_of_the_step_may_not_have_changed(
    low: float | None, high: float | None, status: str
) -> None:
    """The part is a mean over ranks: what changed by more on one of them is no noise of it."""
    before, after = document_of(DDP), document_of(DDP)
    step_ns = known(before.headline.step_ns)
    costs_ns = {"per_step_ns": step_ns}
    after.findings[:] = [
        msgspec.structs.replace(one, metrics={**one.metrics, **costs_ns}) for one in after.findings
    ]
    low_ns, high_ns = (None if of is None else round(of * step_ns) for of in (low, high))
    part = PartChange("exposed copy", 0, step_ns // 20, step_ns // 20, low_ns, high_ns)
    statuses = {one.id: one.status for one in findings([before], [after], step_ns, [part])}
    assert statuses["exposed-copy"] == status
    assert statuses["exposed-communication"] == "worse"


def timed_document(*of_ranks: list[int]) -> Document:
    """Return an analysis whose ranks timed steps of these lengths before they were recorded."""
    document = document_of(DDP)
    timed = [TimedSteps(rank, tuple(lengths), (1, 2, 3)) for rank, lengths in enumerate(of_ranks)]
    return msgspec.structs.replace(
        document, reports=[msgspec.structs.replace(document.reports[0], timed=timed)]
    )


@pytest.mark.parametrize("num_recordings", [1, 2])
def test_the_step_without_the_recorder(num_recordings: int) -> None:
    quick = [100_000, 102_000, 98_000, 100_000]
    before = [
        timed_document([80_000] * 3, [(1 + number) * ns for ns in quick])
        for number in range(num_recordings)
    ]
    after = timed_document([ns * 9 // 10 for ns in quick], [50_000] * 3)
    comparison = compare(before, after)
    step = comparison.step.unrecorded
    assert step is not None
    mean_ns = 100_000 * (1 + num_recordings) / 2
    assert (step.before_ns, step.after_ns) == (mean_ns, 90_000)
    assert (step.num_before, step.num_after) == (4 * num_recordings, 4)
    assert step.change == pytest.approx(90_000 / mean_ns - 1)
    if num_recordings == 1:  # Welch's t of two means of four: 5 degrees of freedom, t = 2.571
        error = np.sqrt(np.var(quick, ddof=1) * (1 + 0.81) / 4) / 100_000
        assert step.low == pytest.approx(-0.1 - 2.571 * error, rel=1e-3)
        assert step.high == pytest.approx(-0.1 + 2.571 * error, rel=1e-3)
        (line,) = [
            line
            for line in comparison_sections.render_comparison(comparison).split("\n")
            if line.startswith("Without the recorder")
        ]
        assert line.startswith(
            "Without the recorder a step takes 100.0 µs before and 90.00 µs after, -10.00 % (-1"
        )


def test_steps_that_one_side_did_not_time() -> None:
    assert compare(timed_document([1000] * 4), document_of(DDP)).step.unrecorded is None
    assert compare(document_of(DDP), timed_document([1000] * 4)).step.unrecorded is None


def test_workers_and_graphs_are_candidates_for_the_cause() -> None:
    document = document_of(DDP)

    def side(num_workers: int | None, num_graphs: int) -> list[Document]:
        ranks = [msgspec.structs.replace(rank, num_workers=num_workers) for rank in document.ranks]
        lacking = [
            msgspec.structs.replace(one, num_graphs=num_graphs) for one in document.completeness
        ]
        return [msgspec.structs.replace(document, ranks=ranks, completeness=lacking)]

    def found(before: list[Document], after: list[Document]) -> set[tuple[str, str, str]]:
        differences = comparable(before, after).differences
        return {(one.what, one.before, one.after) for one in differences}

    assert found(side(2, 0), side(8, 30)) == {
        ("loader workers seen of a rank", "2", "8"),
        ("CUDA graphs", "not used", "used"),
    }
    assert found(side(None, 4), side(8, 30)) == set()


RANGES, PERIOD, NONE = StepsSource.RANGES, StepsSource.PERIOD, StepsSource.NONE


def capture(source: StepsSource, *num_kernels: int, longest: int = 0) -> Any:
    periods = [SimpleNamespace(num_kernels=num) for num in num_kernels]
    phases = [SimpleNamespace(counts=place == longest) for place in range(len(periods))]
    headline = SimpleNamespace(
        steps_source=source, periods=periods, phases=phases if len(phases) > 1 else msgspec.UNSET
    )
    return SimpleNamespace(headline=headline)


def test_periods_of_two_sides(kept_text: KeptText) -> None:
    """At most twice as many kernels."""
    said = []
    for before, after in (
        (capture(RANGES), capture(RANGES)),
        (capture(NONE), capture(RANGES)),
        (capture(PERIOD, 4), capture(RANGES)),
        (capture(NONE), capture(PERIOD, 4)),
        (capture(PERIOD, 4, 1), capture(PERIOD, 4)),
        (capture(PERIOD, 4, 2), capture(PERIOD, 8, 1)),
        (capture(PERIOD, 4, 2), capture(PERIOD, 4, 5)),
        (capture(PERIOD, 4, 2), capture(PERIOD, 4, 2, longest=1)),
    ):
        said.append(f"{why_unlike([before], [after])}; {why_unlike([after], [before])}")
    kept_text("\n".join(said))
