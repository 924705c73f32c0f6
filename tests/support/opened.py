"""Open exports: samples are opened and read once, real ones once for neighbouring tests.

No test may change what it gets of them.
"""

import atexit
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.support.traces import REAL_TRACES, SAMPLES, WITHOUT_RANKS
from traceprof.analysis import Analysis, Options, analyze
from traceprof.run.opening import Rank, Run, assemble_run, open_report
from traceprof.trace.open import open_trace


class Closable(Protocol):
    def close(self) -> None: ...


_MAX_OPEN = 4  # real exports that stay open; some hold 100 MB of columns
_REAL = frozenset(REAL_TRACES)
_KNOWN = _REAL | {*SAMPLES}


class _OpenRun:
    """An open report, whose ranks are read, with times as they were recorded."""

    def __init__(self, path: Path) -> None:
        self._trace = open_trace(path)
        try:
            self.run: Run = assemble_run([self._trace], [open_report(self._trace)])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._trace.close()


_runs: OrderedDict[Path, _OpenRun] = OrderedDict()
_analyses: OrderedDict[Path, Analysis] = OrderedDict()
Opened = TypeVar("Opened", bound="Closable")


@contextmanager
def _opened(
    path: Path, cache: OrderedDict[Path, Opened], opening: Callable[[Path], Opened]
) -> Iterator[Opened]:
    if path not in _KNOWN:
        with closing(opening(path)) as opened:
            yield opened
        return
    if path not in cache:
        cache[path] = opening(path)
        large = [known for known in cache if known in _REAL]
        if len(large) > _MAX_OPEN:
            cache.pop(large[0]).close()
    cache.move_to_end(path)
    yield cache[path]


@contextmanager
def ranks_of(path: Path) -> Iterator[Sequence[Rank]]:
    """Open an export and yield its ranks: never none, but where the export is known to have none.

    At most `_MAX_OPEN` real exports may be in use at once.
    """
    with _opened(path, _runs, _OpenRun) as opened:
        ranks = opened.run.ranks
        assert path not in _KNOWN or bool(ranks) != (path.stem in WITHOUT_RANKS), path
        yield ranks


@contextmanager
def analysis_of(path: Path) -> Iterator[Analysis]:
    """Analyse an export with default options, and keep it open."""
    with _opened(path, _analyses, analyze) as analysis:
        assert path not in _KNOWN or bool(analysis.run.ranks) != (path.stem in WITHOUT_RANKS), path
        yield analysis


def closed_analysis(*paths: Path, savings: bool | None = False, **options: Any) -> Analysis:
    """Analyse reports with these options, and close them: what was found stays."""
    analysis = analyze(*paths, options=Options(savings=savings, **options))
    analysis.close()
    return analysis


@atexit.register
def _close_all() -> None:
    for run in _runs.values():
        run.close()
    for analysis in _analyses.values():
        analysis.close()
