"""Calls of MPI matched across ranks, in plain Python: who waited for whom.

Reads the tables of exports with sqlite3 alone, call by call.
"""

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.reference.nsight_export import opened

_TOGETHER = ("allreduce", "allgather", "reduce_scatter", "alltoall", "barrier")
_ROOTED = {"bcast": True, "scatter": True, "reduce": False, "gather": False}  # from the root?
_ONE_MACHINE_NS = 10_000  # by which two hosts of one machine may differ


@dataclass
class Call:
    """A call of one rank: when it began, when the rank began to wait for it, when that ended."""

    name: str
    start: int
    blocked: int
    end: int
    peer: int | None
    tag: int | None
    communicator: str | None
    size: int | None
    root: int | None
    is_inside: bool


def read(path: Path, shift: int = 0) -> dict[int, list[Call]]:
    """Return the calls of each rank of an export by start, `shift` added to their times."""
    with opened(path) as (database, texts):
        database.row_factory = sqlite3.Row
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}

        def rows(name: str) -> list[sqlite3.Row]:
            return database.execute(f"SELECT * FROM {name}").fetchall() if name in tables else []

        def value(row: sqlite3.Row, name: str) -> int | None:
            number: int | None = row[name] if name in row.keys() else None  # noqa: SIM118
            return number

        ranks = {row["globalTid"] >> 24: row["rank"] for row in rows("MPI_RANKS")}
        if not ranks:
            ranks = {
                row["globalTid"] >> 24: int(row["text"].split()[2])
                for row in rows("NVTX_EVENTS")
                if row["eventType"] == 39 and (row["text"] or "").startswith("MPI Rank ")
            }
        known: dict[int, dict[int | None, tuple[str, int]]] = defaultdict(dict)
        for row in rows("MPI_COMMUNICATORS"):
            named = row["groupRoot"] is not None
            name = f"{row['groupRoot']}/{row['groupRootUid']}" if named else "world"
            known[row["rank"]][row["commHandle"]] = name, row["size"]
        posts, waits = defaultdict(list), defaultdict(list)
        for table in ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_OTHER_EVENTS"):
            for row in rows(table):
                posts[ranks[row["globalTid"] >> 24]].append(row)
        for row in rows("MPI_START_WAIT_EVENTS"):
            waits[ranks[row["globalTid"] >> 24]].append(row)
        span: dict[int, tuple[int, int]] = {}
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            for row in rows(f"CUPTI_ACTIVITY_KIND_{table}"):
                owner = ranks.get(row["globalPid"] >> 24, -1)
                first, final = span.get(owner, (1 << 62, 0))
                span[owner] = min(first, row["start"]), max(final, row["end"])
        calls: dict[int, list[Call]] = {}
        for rank, of_rank in posts.items():
            calls[rank] = []
            of_rank.sort(key=lambda row: row["start"])
            for row in of_rank:
                name = texts[row["textId"]].removeprefix("MPI_").lower()
                start, blocked, end = row["start"], row["start"], row["end"]
                handle = value(row, "requestHandle")
                if handle:
                    name = name[1:]
                    later = [
                        other["start"]
                        for other in of_rank
                        if value(other, "requestHandle") == handle and other["start"] > start
                    ]
                    own = [
                        wait
                        for wait in waits[rank]
                        if wait["requestHandle"] == handle
                        and start <= wait["start"] < min(later, default=1 << 62)
                    ]
                    if own:
                        last = max(own, key=lambda wait: wait["start"])
                        blocked, end = last["start"], last["end"]
                handles = known[rank]
                handle_of = value(row, "commHandle")
                communicator: tuple[str, int | None] = ("world", None)
                if handle_of in handles:
                    communicator = handles[handle_of]
                elif len(handles) == 1:
                    (communicator,) = handles.values()
                calls[rank].append(
                    Call(
                        name, start + shift, blocked + shift, end + shift,
                        value(row, "remoteRank"), value(row, "tag"), *communicator,
                        value(row, "rootRank"), span[rank][0] <= start <= span[rank][1],
                    )
                )  # fmt: skip
        return calls


def expected(calls: dict[int, list[Call]]) -> dict[tuple[int, int], int]:
    """Match the calls of ranks of one machine; return waits by (waiting rank, rank waited for)."""
    collectives: dict[str | None, dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    messages: dict[tuple[object, ...], dict[int, list[Call]]] = defaultdict(
        lambda: defaultdict(list)
    )
    matrix: dict[tuple[int, int], int] = defaultdict(int)
    anyone = {
        (rank, call.communicator)
        for rank, of_rank in calls.items()
        for call in of_rank
        if call.name == "recv" and (call.peer is None or call.peer < 0 or (call.tag or 0) < 0)
    }
    for rank, of_rank in calls.items():
        for call in of_rank:
            if call.name.endswith(("send", "recv")) and call.name != "sendrecv":
                is_lost = call.name == "recv" and (rank, call.communicator) in anyone
                if call.peer is None or is_lost:
                    continue
                ends = (rank, call.peer) if call.name.endswith("send") else (call.peer, rank)
                messages[(*ends, call.tag, call.communicator)][rank].append(call)
            elif call.name in (*_TOGETHER, *_ROOTED):
                collectives[call.communicator][rank].append(call)
            elif call.name == "sendrecv" and call.size == 2:
                messages["both", call.communicator][rank].append(call)
    spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for groups in (collectives, messages):
        for members in groups.values():
            if len(members) < 2 or len({len(of_rank) for of_rank in members.values()}) > 1:
                continue
            for row in zip(*members.values(), strict=True):
                together = dict(zip(members, row, strict=True))
                _add(spans, together)
    for rank, waited in spans.items():
        counted = -(1 << 62)
        for start, end, last in sorted(waited):
            if end > max(start, counted):
                matrix[rank, last] += end - max(start, counted)
            counted = max(counted, end)
    return matrix


def _add(spans: dict[int, list[tuple[int, int, int]]], together: dict[int, Call]) -> None:
    name = next(iter(together.values())).name
    root = next(iter(together.values())).root
    if name in _ROOTED and root is None:
        return
    last = max(together, key=lambda rank: together[rank].start)
    if _ROOTED.get(name) and root is not None:
        last = root
    others = [call.start for rank, call in together.items() if rank != last]
    is_late = together[last].start - median(others) > _ONE_MACHINE_NS
    for rank, call in together.items():
        came = together[last].start
        waits = min(max(came - call.blocked, 0), call.end - call.blocked)
        if name in _ROOTED:
            waits = waits if (rank != root) == _ROOTED[name] else 0
        if name.endswith(("send", "recv")) and came - call.end > _ONE_MACHINE_NS:
            waits = 0  # a message that a buffer took
        if not is_late:
            waits = 0
        if waits and all(other.is_inside for other in together.values()):
            spans[rank].append((call.blocked, call.blocked + waits, last))
