"""Work shared with a second process, a copy of this one: what was read is there already."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from traceprof.execution.handover import Handover
    from traceprof.progress import Progress

Item = TypeVar("Item")
Made = TypeVar("Made")
if TYPE_CHECKING:
    Make = Callable[[], Iterable[Made]]
    InCopy = Callable[[Progress | None], None]


# How much nicer other copies are than the one that is needed first; more would starve them where
# every core is busy with somebody else's work.
_PATIENCE = 5


class _Threads:
    """What is known of the other threads of this process.

    Attributes:
        changed: held while a copy is made.
        are_guarded: whether they hold locks within `uncopied` only.
        num_busy: how many are within it.
        copies: of this process that may still make something.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.are_guarded = False
        self.num_busy = 0
        self.copies: list[Copy[Any]] = []


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


def has_company() -> bool:
    """Say whether other threads, which hold no locks just now, may want this process's time."""
    return _others.are_guarded


@contextmanager
def ahead(
    makes: Sequence[Make[Made]], in_copy: InCopy, told: Progress | None = None
) -> Iterator[list[Copy[Made]]]:
    """Have copies of this process make something while the block goes on with something else.

    Args:
        makes: each makes something in a copy of its own, piece by piece: what is kept and let go of
            together. What is needed first comes first: the others give way to it.
        in_copy: what each copy has to do before, given whom to tell of its progress, if anybody
            wants to know.
        told: who is told of the progress of copies, by threads.

    Yields:
        The copies, which end with the block.
    """
    copies: list[Copy[Made]] = []
    try:
        for copy in _others.copies:
            copy.wait()  # the thread that takes what comes would hold locks while others are made
        for number, make in enumerate(makes):
            copies.append(Copy(make, in_copy, told, patience=_PATIENCE if number else 0))
            copies[-1].start()
        _others.copies += copies
        for copy in copies:
            copy.receive()
        yield copies
    finally:
        for copy in copies:
            copy.end()


class Copy(Generic[Made]):
    """A copy of this process that makes something."""

    def __init__(
        self, make: Make[Made], in_copy: InCopy, told: Progress | None, *, patience: int
    ) -> None:
        from multiprocessing import get_context  # noqa: PLC0415  (small exports need no copy)

        from traceprof.execution.handover import Handover  # noqa: PLC0415

        self._make, self._told = make, told
        self._handover = Handover()
        telling = None if told is None else _Telling(self._handover)
        arguments = (self._handover, make, partial(in_copy, telling), patience)
        self._process = get_context("fork").Process(target=_send, args=arguments, daemon=True)
        self._pieces: list[Made] = []
        self._is_whole = False
        self._receiver: threading.Thread | None = None

    def start(self) -> None:
        """Make the copy."""
        with _others.changed, _no_warning_of_threads():
            _others.changed.wait_for(lambda: not _others.num_busy)
            self._process.start()
        self._handover.receive()

    def receive(self) -> None:
        """Take what comes: a channel holds a few pages, and without this the copy would wait."""
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def _receive(self) -> None:
        expected, read, told = 0, 0, self._told
        with suppress(EOFError, OSError):
            for piece in self._handover.pieces():
                if not isinstance(piece, _Rows):
                    self._pieces.append(piece)
                elif told is not None:
                    expected, read = expected + piece.expected, read + piece.read
                    told.expect(piece.expected)
                    told.advance(piece.read)
            self._is_whole = True
        if told is not None and not self._is_whole:  # this process will read them again
            told.expect(-expected)
            told.advance(-read)

    @property
    def is_over(self) -> bool:
        """Whether all has come that will."""
        return self._receiver is None or not self._receiver.is_alive()

    def wait(self) -> None:
        """Return when all has come that will."""
        if self._receiver is not None:
            self._receiver.join()

    def made(self) -> list[Made]:
        """Return the pieces when all are there; what the copy could not make, this process does."""
        self.wait()
        return self._pieces if self._is_whole else list(self._make())

    def end(self) -> None:
        """End the copy."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self.wait()
        self._handover.close()
        if self in _others.copies:
            _others.copies.remove(self)


class _Rows(NamedTuple):
    """What a copy tells of its progress."""

    expected: int
    read: int


class _Telling:
    """Tells the first process of the progress in a copy."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def expect(self, number: int) -> None:
        """Tell that so many rows more, or fewer, will be read."""
        self._handover.send(_Rows(number, 0))

    def advance(self, number: int) -> None:
        """Tell that so many rows were read."""
        self._handover.send(_Rows(0, number))


def shared(work: Callable[[Item], Made], items: Sequence[Item], in_copy: InCopy) -> list[Made]:
    """Return what work makes of each item, every other one made by a copy of this process.

    What the copy cannot do, for whatever reason, this process does: so errors are those of one
    process, and a copy that was killed costs only time.

    Args:
        work: makes the same of an item in either process; what it makes can be pickled.
        items: the items.
        in_copy: what the copy has to do before; nobody is told of its progress.
    """
    with ahead([lambda: map(work, items[1::2])], in_copy) as (others,):
        made = [work(item) for item in items[::2]]
        pairs = zip_longest(made, others.made())
    return [each for pair in pairs for each in pair][: len(items)]


def _send(handover: Handover, make: Make[Any], in_copy: Callable[[], None], patience: int) -> None:
    # The first process answers Ctrl-C, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(patience)
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
