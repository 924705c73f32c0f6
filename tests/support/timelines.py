"""Timelines of small traces, for the tests of what is drawn of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboards.timeline import store
from dashboards.timeline.tracks import RankTimeline, read_gpu, with_host
from tests.support.builders import TraceBuilder
from tests.support.opened import analysis_of
from traceprof.errors import TraceFormatError

Event = tuple[int, int, str]


@contextmanager
def timelines(trace: TraceBuilder, folder: Path) -> Iterator[list[RankTimeline]]:
    """Write a trace and yield the timelines of its ranks."""
    with analysis_of(trace.write(folder)) as analysis:
        steps = {row.rank: row.steps for row in analysis.result.breakdown}
        yield [with_host(read_gpu(rank, steps.get(rank.rank, ()))) for rank in analysis.run.ranks]


def damage_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what hosts did be damaged where the analysis did not look."""

    def damaged(*_: object) -> RankTimeline:
        raise TraceFormatError("cannot read t.sqlite", "ThreadNames.globalTid holds 'soon'", "")

    monkeypatch.setattr(store, "with_host", damaged)


def drawn(timeline: RankTimeline) -> list[tuple[str, str, str, list[Event]]]:
    """Return group, label, kind and events of each row."""
    return [
        (
            track.group,
            track.label,
            track.kind,
            [
                (start, end, timeline.events[track.source].name_of(index))
                for start, end, index in zip(
                    track.row.start_ns.tolist(),
                    track.row.end_ns.tolist(),
                    track.index.tolist(),
                    strict=True,
                )
            ],
        )
        for track in timeline.tracks
    ]
