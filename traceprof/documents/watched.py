"""What a watch wrote while a training ran, as the JSON document `traceprof.watched/1`.

`instrument.watch` writes a line of JSON for each window of steps (docs/watch.md). Here a rank that
was slow, or silent, in windows one after the other is one entry. Where steps count from the start
again, as after a restart, entries end. Times are nanoseconds, means over the windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from traceprof.errors import TraceFormatError
from traceprof.findings import Count
from traceprof.structs import by_key
from traceprof.version import __version__

SCHEMA: Literal["traceprof.watched/1"] = "traceprof.watched/1"
_KINDS: tuple[Literal["slow"], Literal["slow_loaders"]] = ("slow", "slow_loaders")
_BEGIN, _RANKS = b'{"step": ', b'"ranks": ['


class WatchedTimes(Struct):
    """Times of one rank in one window, as a line has them."""

    rank: int
    step_ns: float
    own_ns: float
    wait_ns: float
    loader_ns: float
    excess_ns: float = 0.0
    peers: list[int] = []  # ranks that should take as long; empty for all


class Window(Struct):
    """A line: the ranks' times, who is slow since which step, and who did not answer.

    Without times it was written within a step that did not end.
    """

    step: int
    ranks: list[WatchedTimes]
    silent: list[int] = []
    stuck: dict[int, str] = {}
    slow: dict[int, int] = {}
    slow_loaders: dict[int, int] = {}


class RankTimes(Struct):
    """Times of a rank: the mean over the windows of the medians over their steps.

    Waits for the loader are means, as they may come in few steps.
    """

    rank: Count
    step_ns: Count
    own_ns: Annotated[Count, "Without waits for other ranks and for the loader."]
    wait_ns: Annotated[Count, "Waiting for other ranks in collectives."]
    loader_ns: Annotated[Count, "Waiting for the data loader."]


class SlowRank(Struct):
    """A rank that took longer than its peers, by more than the noise."""

    rank: Count
    since_step: int
    until_step: Annotated[int | None, "Null where it was slow up to the last line."]
    own_ns: Count
    peers_own_ns: Annotated[Count, "Median of its peers."]
    others_wait_ns: Annotated[Count, "What the median of its peers waits for it in a step."]


class SlowLoader(Struct):
    """A rank that waited longer for its data loader than its peers, in all or some of its steps."""

    rank: Count
    since_step: int
    until_step: Annotated[int | None, "Null where it did up to the last line."]
    loader_ns: Annotated[Count, "Mean over the steps."]
    peers_loader_ns: Annotated[Count, "Median of its peers."]


class SilentRank(Struct):
    """A rank that did not answer."""

    rank: Count
    since_step: int
    until_step: int | None


class StuckRank(Struct):
    """A rank that got no further in a step, while the others waited for it."""

    rank: Count
    after_step: int
    line: Annotated[str, "Of the script, with the function."]


class Watched(Struct):
    """Output of `traceprof analyze FILE --format json` where FILE is of `instrument.watch`.

    Times are nanoseconds. New keys may appear; those required here stay.
    """

    schema: Literal["traceprof.watched/1"]
    version: str
    path: str
    num_windows: Count
    first_step: Annotated[int, "Step at the end of the first window."]
    last_step: int
    num_restarts: Annotated[Count, "How often steps began again."]
    slow: Annotated[list[SlowRank], "In order of the wait that they cause."]
    slow_loaders: list[SlowLoader]
    silent: list[SilentRank]
    stuck: list[StuckRank]
    ranks: list[RankTimes]


def is_watched(path: Path) -> bool:
    """Return whether a file begins as the lines of a watch do; also false if it cannot be read."""
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return False
        with path.open("rb") as file:
            start = file.read(200)
    except (OSError, ValueError):
        return False
    return start.startswith(_BEGIN) and _RANKS in start


def read_windows(path: Path) -> list[Window]:
    """Read the lines that a watch wrote, but for those that were cut while they were written.

    Raises TraceFormatError: another line is none of a watch, or there is none yet.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        windows = [window for line in lines if (window := _window(line))]
    except msgspec.DecodeError as error:
        why = f"a line is none that instrument.watch writes ({error})"
        raise TraceFormatError(f"cannot read {path}", why, "copy it again") from error
    if not windows:
        why = "it has no whole line yet"
        raise TraceFormatError(f"cannot read {path}", why, "try again after the next window")
    return windows


def _window(line: bytes) -> Window | None:
    try:
        return msgspec.json.decode(line, type=Window)
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            return None
        raise


def watched(path: Path, lines: Sequence[Window]) -> Watched:
    """Return who was slow or silent, by the lines of a file."""
    windows = [window for window in lines if window.ranks]
    parts, line_parts = _parts(windows) if windows else [], _parts(lines)
    slow, loaders = (
        [one for part in parts for one in _slow(part, kind, is_last=part is parts[-1])]
        for kind in _KINDS
    )
    return Watched(
        schema=SCHEMA,
        version=__version__,
        path=str(path),
        num_windows=len(windows),
        first_step=lines[0].step,
        last_step=lines[-1].step,
        num_restarts=len(line_parts) - 1,
        slow=sorted(
            (SlowRank(*span, *means) for span, means in slow),
            key=lambda one: (-one.others_wait_ns, one.since_step, one.rank),
        ),
        slow_loaders=[SlowLoader(*span, *means[:2]) for span, means in loaders],
        silent=[
            one for part in line_parts for one in _silent(part, is_last=part is line_parts[-1])
        ],
        stuck=[
            StuckRank(rank, one.step, line) for one in lines for rank, line in one.stuck.items()
        ],
        ranks=_times(windows),
    )


def _parts(windows: Sequence[Window]) -> list[Sequence[Window]]:
    """Divide windows where steps begin again; lines without times may have the step before."""
    starts = [0]
    for at in range(1, len(windows)):
        change = windows[at].step - windows[at - 1].step
        if change < 0 or (change == 0 and windows[at].ranks and windows[at - 1].ranks):
            starts.append(at)
    return [windows[a:b] for a, b in zip(starts, [*starts[1:], len(windows)], strict=True)]


def _times(windows: Sequence[Window]) -> list[RankTimes]:
    of_rank = by_key((one for window in windows for one in window.ranks), lambda one: one.rank)
    names = ("step_ns", "own_ns", "wait_ns", "loader_ns")
    return [
        RankTimes(rank, *(round(fmean(getattr(one, name) for one in rows)) for name in names))
        for rank, rows in sorted(of_rank.items())
    ]


def _slow(
    windows: Sequence[Window], kind: Literal["slow", "slow_loaders"], *, is_last: bool
) -> Iterator[tuple[tuple[int, int, int | None], list[int]]]:
    """Yield ranks that were slow: first and last step, and means over the windows between them.

    Means of its time, its peers' median, and what the others waited for it.
    """
    name = "own_ns" if kind == "slow" else "loader_ns"
    last: dict[tuple[int, int], int] = {}
    for number, window in enumerate(windows):
        last.update(dict.fromkeys(getattr(window, kind).items(), number))
    for (rank, since), number in last.items():
        # Two windows within the noise end it: the first of these begins where it was slow no more.
        over = windows[number + 1 : number + 2]
        until = windows[max(number - 1, 0)].step if over else windows[number].step
        rows = [
            (
                getattr(own, name),
                median(getattr(peer, name) for peer in peers),
                min(own.excess_ns, median(peer.wait_ns for peer in peers)),
            )
            for window in windows
            if since < window.step <= until
            for own in window.ranks
            if own.rank == rank
            and (
                peers := [
                    other
                    for other in window.ranks
                    if other.rank != rank and (not own.peers or other.rank in own.peers)
                ]
            )
        ]
        if rows:
            means = [round(fmean(column)) for column in zip(*rows, strict=True)]
            yield (rank, since, until if over or not is_last else None), means


def _silent(windows: Sequence[Window], *, is_last: bool) -> list[SilentRank]:
    found = []
    for rank in sorted({rank for window in windows for rank in window.silent}):
        inside: list[Window] = []
        for window in windows:
            if rank in window.silent:
                inside.append(window)
            elif inside:
                found.append(SilentRank(rank, inside[0].step, inside[-1].step))
                inside = []
        if inside:
            until = None if is_last else inside[-1].step
            found.append(SilentRank(rank, inside[0].step, until))
    return found
