"""Reads the ranges and calls of ranks in the background, so that a search need not wait."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from traceprof.errors import TraceprofError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_log = logging.getLogger("traceprof.dashboard")


class EventReader:
    """Reads the events of ranks on its own thread, one rank after the other.

    Args:
        read: reads and keeps the events of a rank.
    """

    def __init__(self, read: Callable[[int], object]) -> None:
        self._read = read
        self._waiting: OrderedDict[int, None] = OrderedDict()
        self._failed: dict[int, TraceprofError] = {}
        self._changed = threading.Condition()
        self._is_running = False

    def finish(self, numbers: Iterable[int], timeout_s: float) -> bool:
        """Wait at most this time until ranks are read; return whether all are.

        Raises:
            TraceprofError: one of them could not be read.
        """
        wanted = list(numbers)
        with self._changed:
            self._waiting.update(dict.fromkeys(wanted))
            if self._waiting and not self._is_running:
                self._is_running = True
                threading.Thread(target=self._work, name="reading events", daemon=True).start()
            is_read = self._changed.wait_for(
                lambda: not any(number in self._waiting for number in wanted), timeout_s
            )
            for number in wanted:
                if number in self._failed:
                    raise self._failed[number]
            return is_read

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_running = False
                    return
                number = next(iter(self._waiting))
            try:
                self._read(number)
            except TraceprofError as error:
                self._failed[number] = error
            except Exception:  # noqa: BLE001  (said in the page and in the log)
                _log.exception("cannot read the events of rank %s", number)
                why = "an internal error, which the terminal that runs traceprof shows"
                self._failed[number] = TraceprofError("cannot search", why, "report it")
            with self._changed:
                del self._waiting[number]
                self._changed.notify_all()
