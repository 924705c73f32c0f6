"""`python -m traceprof` is the `traceprof` command.

Ctrl-C while the modules are imported ends the process at once, without a traceback.
"""

from __future__ import annotations

import os

try:
    import signal
except KeyboardInterrupt:
    os._exit(130)

TYPE_CHECKING = False  # as `typing` has it, without its import
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def _leave(*_: int | FrameType | None) -> NoReturn:
    os._exit(130)


def main() -> NoReturn:
    """Run the command line and exit."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from traceprof.cli.main import main as run  # noqa: PLC0415  (under the guard)

    run()


if __name__ == "__main__":
    main()
