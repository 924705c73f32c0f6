"""Work shared with a second process, a copy of this one: what was read is there already."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Made = TypeVar("Made")


def can_fork() -> bool:
    """Say whether a copy of this process would work.

    Not on macOS, whose own libraries forbid it; not beside other threads of Python's, whose locks
    the copy would never see released.
    """
    return sys.platform == "linux" and threading.active_count() == 1


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
    # Only large exports are shared, and small ones shall not pay for the import.
    from multiprocessing import get_context  # noqa: PLC0415

    fork = get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    copy = fork.Process(target=_work, args=(ours, theirs, work, items[1::2], in_copy), daemon=True)
    with warnings.catch_warnings():
        # numpy's threads for linear algebra, which Python 3.12 warns of, wait for work.
        warnings.simplefilter("ignore", DeprecationWarning)
        copy.start()
    theirs.close()
    try:
        made = [work(item) for item in items[::2]]
        try:
            others: Sequence[Made] | None = ours.recv()
        except (EOFError, OSError):
            others = None
    finally:
        copy.kill()
        copy.join()
        ours.close()
    if others is None:
        others = [work(item) for item in items[1::2]]
    both = [*made, *others]
    both[::2], both[1::2] = made, others
    return both


def _work(
    others_end: Connection,
    pipe: Connection,
    work: Callable[[Any], Any],
    items: Sequence[Any],
    in_copy: Callable[[], None],
) -> None:
    # The first process answers Ctrl-C, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    others_end.close()  # so that this process ends, too, if the first one was killed
    try:
        in_copy()
        pipe.send([work(item) for item in items])
    except Exception:  # noqa: BLE001  (whatever it is, the first process meets it, too)
        pipe.close()
