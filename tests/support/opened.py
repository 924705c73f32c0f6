"""Open exports: real ones and samples are opened once for neighbouring tests, and read once.

No test may change what it gets of them.
"""

from __future__ import annotations

import atexit
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.traces import REAL_TRACES, SAMPLES, WITHOUT_RANKS
from traceprof.run.opening import open_run
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from traceprof.run.opening import Rank, Run

_MAX_OPEN = 4  # real exports and samples that stay open; some hold 100 MB of columns
_KNOWN = frozenset((*REAL_TRACES, *SAMPLES))
_open: OrderedDict[Path, Run] = OrderedDict()


def _opened(path: Path) -> Run:
    trace = open_trace(path)
    try:
        return open_run([trace])
    except BaseException:
        trace.close()
        raise


def _close(run: Run) -> None:
    for trace in run.traces:
        trace.close()


@contextmanager
def ranks_of(path: Path) -> Iterator[Sequence[Rank]]:
    """Open an export and yield its ranks: never none, but where the export is known to have none.

    At most `_MAX_OPEN` known exports may be in use at once.
    """
    if path not in _KNOWN:
        run = _opened(path)
        try:
            yield run.ranks
        finally:
            _close(run)
        return
    if path not in _open:
        _open[path] = _opened(path)
        if len(_open) > _MAX_OPEN:
            _close(_open.popitem(last=False)[1])
    _open.move_to_end(path)
    ranks = _open[path].ranks
    assert bool(ranks) != (path.stem in WITHOUT_RANKS), path
    yield ranks


@atexit.register
def _close_all() -> None:
    while _open:
        _close(_open.popitem()[1])
