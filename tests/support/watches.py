"""Lines of a watch, written by its own reporter."""

from collections.abc import Callable, Sequence
from pathlib import Path

from instrument.watching import Reporter, Times

MS = 1_000_000
SLOW, PEERS = 15 * MS, 10 * MS


def written(
    path: Path,
    own_ns: Callable[[int, int], int],
    num_windows: int = 20,
    silent: Callable[[int], list[int]] = lambda _: [],
    peers: Sequence[Sequence[int]] = ((), (), (), ()),
) -> Path:
    """Write the lines of windows of 100 steps of four ranks, by the watch's own reporter."""
    reporter = Reporter(100, path, None)
    for number in range(1, num_windows + 1):
        missing = silent(number)
        rows = [
            Times(
                rank,
                100 * number,
                20 * MS,
                own_ns(rank, number),
                8 * MS,
                MS,
                spread_ns=50_000,
                peers=peers[rank],
            )
            for rank in range(4)
            if rank not in missing
        ]
        reporter.say(reporter.table(100 * number, rows, dict.fromkeys(missing, 0), {}))
    return path


def third_is_slow(rank: int, number: int) -> int:
    return SLOW if rank == 2 and 6 <= number <= 12 else PEERS
