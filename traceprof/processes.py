"""Work shared with a second process, a copy of this one: what was read is there already."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from traceprof.handover import Handover

Item = TypeVar("Item")
Made = TypeVar("Made")


class _Threads:
    """What is known of the other threads of this process.

    Attributes:
        changed: held while a copy is made.
        are_guarded: whether they hold locks within `uncopied` only.
        num_busy: how many are within it.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.are_guarded = False
        self.num_busy = 0


_others = _Threads()


@contextmanager
def guarded_threads() -> Iterator[None]:
    """Promise that, during the block, other threads hold locks of others within `uncopied` only."""
    _others.are_guarded = True
    try:
        yield
    finally:
        _others.are_guarded = False


@contextmanager
def uncopied() -> Iterator[None]:
    """Have this process not copied while the block runs, on another thread than the first."""
    with _others.changed:
        _others.num_busy += 1
    try:
        yield
    finally:
        with _others.changed:
            _others.num_busy -= 1
            _others.changed.notify_all()


def can_fork() -> bool:
    """Say whether a copy of this process would work.

    Not on macOS, whose own libraries forbid it; not beside other threads of Python's, whose locks
    the copy would never see released, but those that hold none just now.
    """
    if sys.platform != "linux":
        return False
    are_idle = _others.are_guarded and not _others.num_busy
    return are_idle or threading.active_count() == 1


@contextmanager
def ahead(
    make: Callable[[], Iterable[Made]], in_copy: Callable[[], None]
) -> Iterator[Callable[[], list[Made]]]:
    """Have a copy of this process make something while the block goes on with something else.

    Args:
        make: makes it, piece by piece, so that no more than a piece is held twice.
        in_copy: what the copy has to do before.

    Yields:
        What waits for the pieces. Where the copy could not make them, this process does.
    """
    from multiprocessing import get_context  # noqa: PLC0415  (small exports need no copy)

    from traceprof.handover import Handover  # noqa: PLC0415

    handover = Handover()
    fork = get_context("fork")
    copy = fork.Process(target=_send, args=(handover, make, in_copy), daemon=True)
    with _others.changed, _no_warning_of_threads():
        _others.changed.wait_for(lambda: not _others.num_busy)
        copy.start()
    handover.receive()

    pieces: list[Made] = []
    is_whole = threading.Event()

    def receive() -> None:
        with suppress(EOFError, OSError):
            pieces.extend(handover.pieces())
            is_whole.set()

    def made() -> list[Made]:
        receiver.join()
        return pieces if is_whole.is_set() else list(make())

    # A channel holds a few pages: without somebody who takes what comes, the copy would wait.
    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    try:
        yield made
    finally:
        copy.kill()
        copy.join()
        receiver.join()
        handover.close()


def shared(
    work: Callable[[Item], Made], items: Sequence[Item], in_copy: Callable[[], None]
) -> list[Made]:
    """Return what work makes of each item, every other one made by a copy of this process.

    What the copy cannot do, for whatever reason, this process does: so errors are those of one
    process, and a copy that was killed costs only time.

    Args:
        work: makes the same of an item in either process; what it makes can be pickled.
        items: the items.
        in_copy: what the copy has to do before.
    """
    with ahead(lambda: map(work, items[1::2]), in_copy) as others:
        made = [work(item) for item in items[::2]]
        pairs = zip_longest(made, others())
    return [each for pair in pairs for each in pair][: len(items)]


def _send(
    handover: Handover, make: Callable[[], Iterable[Any]], in_copy: Callable[[], None]
) -> None:
    # The first process answers Ctrl-C, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handover.begin()
    # Whatever is wrong, the first process meets it, too.
    with suppress(Exception):
        in_copy()
        for piece in make():
            handover.send(piece)
        handover.end()


@contextmanager
def _no_warning_of_threads() -> Iterator[None]:
    with warnings.catch_warnings():
        # Python 3.12 warns of threads: numpy's for linear algebra wait for work.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
