"""Signals that come right before a wait: Python has noted them, and no system call ends by them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_UNTIL_WAIT_S = 0.5  # how long this thread may take to the wait; after it nothing more is tested


@contextmanager
def unnoticed_signal(
    number: signal.Signals, is_due: Callable[[], object] = lambda: True
) -> Iterator[None]:
    """Send this process a signal that its main thread blocks, so that another one takes it."""
    is_over = threading.Event()

    def send() -> None:
        while not is_due() and not is_over.wait(0.01):
            pass
        if not is_over.wait(_UNTIL_WAIT_S):
            os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()  # before the signal is blocked, which a thread inherits
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        is_over.set()
        sender.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
