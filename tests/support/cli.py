"""The command lines, of traceprof and of the simulator, run in this process."""

import os

import pytest

from sample_traces.simulator.__main__ import command as simulator
from traceprof.cli.main import main


def run(*arguments: str | os.PathLike[str]) -> int:
    """Run a command with these arguments; return its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        main([os.fspath(argument) for argument in arguments])
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code


def run_simulator(*arguments: str | os.PathLike[str]) -> int:
    """Run the simulator with these arguments; return its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        simulator([os.fspath(argument) for argument in arguments])
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code
