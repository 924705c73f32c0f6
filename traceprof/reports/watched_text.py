"""What a watch wrote while a training ran, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traceprof.documents.watched import SilentRank, SlowLoader, SlowRank, Watched
from traceprof.reports.blocks import Block, Paragraph, section, table
from traceprof.reports.text import plain, renderable
from traceprof.units import counted, duration
from traceprof.version import __version__

_MAX_ENTRIES = 10
_MAX_RANKS = 16


class Verdict(NamedTuple):
    """What a watch found of one rank."""

    rank: int
    since_step: int
    until_step: int | None  # None where it went on up to the last line, or is not known
    line: str  # all of it, as a sentence


def verdicts(watched: Watched) -> list[Verdict]:
    """Return who was slow, waited for its loader, did not answer or got no further."""
    return [
        *(
            _since(
                one,
                f"computes {one.own_ns / max(one.peers_own_ns, 1):.2f} x its peers{_span(one)}"
                f" ({duration(one.own_ns)} to {duration(one.peers_own_ns)}); the others wait"
                f" {duration(one.others_wait_ns)} a step for it",
            )
            for one in watched.slow
        ),
        *(
            _since(
                one,
                f"waits {duration(one.loader_ns)} a step for its loader{_span(one)}, its peers"
                f" {duration(one.peers_loader_ns)}",
            )
            for one in watched.slow_loaders
        ),
        *(_since(one, f"did not answer{_span(one)}") for one in watched.silent),
        *(
            Verdict(
                one.rank,
                one.after_step,
                None,
                f"Rank {one.rank} got no further than {one.line} after step {one.after_step}.",
            )
            for one in watched.stuck
        ),
    ]


def _since(one: SlowRank | SlowLoader | SilentRank, what: str) -> Verdict:
    return Verdict(one.rank, one.since_step, one.until_step, f"Rank {one.rank} {what}.")


def render(watched: Watched) -> str:
    """Return who was slow, since when and until when, and each rank's times, as plain text."""
    title = Paragraph(f"traceprof {__version__}", "title")
    lines = [found.line for found in verdicts(watched)]
    if not lines:
        lines = ["No rank took longer than its peers by more than the noise, and all answered."]
    more = len(lines) - _MAX_ENTRIES
    lines[_MAX_ENTRIES:] = [f"… {more} more: --format json has them"] if more > 0 else []
    head = section("", title, _about(watched))
    ranks = [section("Ranks", *_ranks(watched))] if watched.ranks else []
    return plain(renderable([head, section("", *lines), *ranks]))


def _about(watched: Watched) -> str:
    windows = counted(watched.num_windows, "window")
    restarts = counted(watched.num_restarts, "restart")
    after = f", {restarts} between" if watched.num_restarts else ""
    last = watched.last_step
    return f"{watched.path}  {windows} of steps up to {last}, by instrument.watch{after}"


def _span(one: SlowRank | SlowLoader | SilentRank) -> str:
    since = f"since step {one.since_step}"
    return f" {since}" if one.until_step is None else f" {since}, up to step {one.until_step}"


def _ranks(watched: Watched) -> Iterator[Block | str]:
    parts = (watched.slow, watched.slow_loaders, watched.silent)
    named = dict.fromkeys(one.rank for part in parts for one in part)
    by_rank = {one.rank: one for one in watched.ranks}
    order = [*(rank for rank in named if rank in by_rank), *(r for r in by_rank if r not in named)]
    rows = [
        (str(rank), *map(duration, (one.step_ns, one.own_ns, one.wait_ns, one.loader_ns)))
        for rank in order[:_MAX_RANKS]
        for one in (by_rank[rank],)
    ]
    yield table(("rank", "a step takes", "own", "waits", "loader"), rows)
    if len(order) > _MAX_RANKS:
        yield f"… {len(order) - _MAX_RANKS} more ranks: --format json has them"
