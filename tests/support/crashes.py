"""What a worker of pytest-xdist was doing when it crashed, at the end of all that is printed."""

import faulthandler
import re
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, TextIO

import pytest

_FOLDER = "folder_of_stacks"  # what workers learn from who starts them
_OF_PYTEST = re.compile(r"/(?:_pytest|execnet|pluggy|xdist)/")
_MAX_WAIT_S = 10  # for the end of a worker whose connection is gone


class Crashes:
    """Keeps how workers ended that crashed, and the Python stacks of their threads."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._folder: Path | None = None
        self._file: TextIO | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Have stacks written where the first process finds them; pytest lets them go to stderr."""
        worker: dict[str, Any] = getattr(session.config, "workerinput", {})
        if _FOLDER in worker:
            file = Path(worker[_FOLDER], worker["workerid"])
            self._file = file.open("w", encoding="utf-8")
            faulthandler.enable(self._file)

    def watch(self, limit_s: float) -> None:
        """End the process, with the stacks, if nobody calls this or cancels it within the limit."""
        file = self._file or sys.stderr
        faulthandler.dump_traceback_later(limit_s, exit=True, file=file)

    def pytest_unconfigure(self) -> None:
        """Leave nothing behind."""
        if self._file is not None:
            faulthandler.disable()
            self._file.close()
        if self._folder is not None:
            shutil.rmtree(self._folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where its stacks go."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="stacks-of-tests-"))
        node.workerinput[_FOLDER] = str(self._folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Keep what is known of a worker that is gone."""
        if not error or self._folder is None:
            return
        name, lines = node.gateway.id, [str(error)]
        with suppress(AttributeError, TimeoutExpired):  # execnet's own, of one machine
            status = node.gateway._io.popen.wait(_MAX_WAIT_S)
            by = f", by {signal.Signals(-status).name}" if status < 0 else ""
            lines.append(f"exit status {status}{by}")
        with suppress(OSError):
            stacks = (self._folder / name).read_text(encoding="utf-8", errors="replace")
            lines += [line for line in stacks.splitlines() if not _OF_PYTEST.search(line)]
        self._said[name] = "\n".join(lines)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it."""
        for name, said in self._said.items():
            terminalreporter.section(f"worker {name} crashed")
            terminalreporter.write_line(said)
