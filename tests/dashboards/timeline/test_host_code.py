"""What the host ran: the code that launched a kernel, rows of operators, stalls."""

from pathlib import Path

import numpy as np
import pytest

from dashboards.timeline.events import OPERATOR, OPERATORS, STALL, STALLS
from dashboards.timeline.store import Timelines, TimelineSource
from tests.support.dashboard import asking
from tests.support.traces import SAMPLE, analysis_of


def test_stalls_of_the_host_have_a_row() -> None:
    with analysis_of(SAMPLE.with_stem("host-stall")) as analysis:
        store = Timelines(TimelineSource.of(analysis))
        known = {stalls.rank: stalls for stalls in analysis.result.measured.stalls}
        assert any(len(stalls.start_ns) for stalls in known.values())
        for number in store.numbers:
            rows = [track for track in store.whole(number).tracks if track.kind == STALLS]
            shown = [
                (start, end)
                for track in rows
                for start, end in zip(
                    track.row.start_ns.tolist(), track.row.end_ns.tolist(), strict=True
                )
            ]
            stalls = known[number]
            expected = zip(stalls.start_ns.tolist(), stalls.end_ns.tolist(), strict=True)
            assert shown == sorted(expected)
        number = next(rank for rank, stalls in known.items() if len(stalls.start_ns))
        event = asking(analysis)("event", id=f"{number}.{STALL}.0")
        assert (event["label"], event["kind"]) == ("stalled", STALLS)
        found = asking(analysis)("hits", text="kind:stall", start=0, end=1 << 60, columns=10)
        assert found["columns"] != []


def test_the_launching_code_of_a_kernel_and_the_rows_of_operators(traces: Path) -> None:
    path = traces / "kineto/h100_timesformer.json.gz"
    if not path.exists():
        pytest.skip("TRACEPROF_TRACES has no h100_timesformer")
    with analysis_of(path) as analysis:
        (launched,) = analysis.result.launched
        rank = analysis.run.ranks[0]
        kernels = rank.operations.kernels
        names = [rank.kernel_names[id_] for id_ in kernels.name_of_signature.tolist()]
        of_kernel = [names[number] for number in kernels.packed_signature.values.tolist()]
        once = [name for name in launched.by_name if of_kernel.count(name) == 1]
        assert once
        for name in once:  # a name that ran once was launched by what launched most of its time
            event = asking(analysis)("event", id=f"{rank.rank}.op.{of_kernel.index(name)}")
            facts, expected = dict(event["facts"]), launched.of(name)
            assert facts.get("operator") == expected.operator
            assert facts.get("module") == expected.module
            assert facts.get("source") == expected.source
        store = Timelines(TimelineSource.of(analysis))
        rows = [track for track in store.whole(rank.rank).tracks if track.kind == OPERATORS]
        assert rows
        assert all(track.is_folded and track.source == OPERATOR for track in rows)
        operators = rank.trace.operators(rank.process)
        assert operators is not None
        index = np.sort(np.concatenate([track.index for track in rows]))
        assert index.tolist() == list(range(len(operators)))
        first = asking(analysis)("event", id=f"{rank.rank}.{OPERATOR}.0")
        assert int(first["start"]) == int(operators.start_ns[0])
        assert first["name"] == operators.names[int(operators.packed_name.values[0])]
