"""Exceptions that a signal's handler raises inside our code pass, and leave nothing behind."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from instrument.core import nvtx_ranges, wrapping
from tests.support.commands import ended

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "alarms.py"


class Alarm(Exception):  # noqa: N818
    """What a user's handler raises."""


def run(folder: Path, tool: Path, alarms: int) -> list[dict[str, int]]:
    """Return what the program counted without ranges and with them."""
    path = folder / "counted.json"
    environ = {nvtx_ranges.VARIABLE: str(tool), "PYTHONPATH": ":".join(sys.path)}
    done = ended(sys.executable, PROGRAM, str(alarms), path, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    result: list[dict[str, int]] = json.loads(path.read_text())
    return result


@pytest.mark.long
@pytest.mark.parametrize("alarms", [300, 20_000], ids=["some", "many"])
def test_every_alarm_arrives(tmp_path: Path, tool: Path, alarms: int) -> None:
    without, counted = run(tmp_path, tool, alarms)
    assert without["fired"] == counted["fired"] == alarms
    assert without["lost"] == 0
    assert counted["lost"] == 0
    assert counted["level"] == 0
    assert counted["pushed"] > alarms
    assert counted["pushed"] == counted["popped"]
    assert abs(counted["started"] - counted["ended"]) <= 2 + alarms // 1000


def raised(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError


def test_whose_an_exception_is() -> None:
    def handler(_: int, frame: object) -> None:
        raise RuntimeError("DataLoader worker is killed")

    def divide(*_: object) -> object:
        return 1 // 0

    def fail(error: Exception) -> object:
        raise error

    frame = sys._getframe()
    assert wrapping.is_ours(raised(lambda: 1 // 0))
    assert wrapping.is_ours(raised(lambda: object().nothing))  # type: ignore[attr-defined]
    assert not wrapping.is_ours(raised(lambda: handler(14, frame)))
    assert not wrapping.is_ours(raised(lambda: divide(14, frame)))
    assert not wrapping.is_ours(raised(lambda: fail(TimeoutError())))
    assert not wrapping.is_ours(raised(lambda: fail(Alarm())))
    assert not wrapping.is_ours(KeyboardInterrupt())
