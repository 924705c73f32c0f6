"""Switching on and off: as often as anybody likes, from any thread, whatever is missing."""

import inspect
import logging
import sys
import threading
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import instrument
from instrument import switch
from instrument.core.patching import Patches
from tests.support.commands import output_of
from tests.support.selection import long_after

pytestmark = pytest.mark.slow


def run(code: str) -> list[str]:
    return output_of(sys.executable, "-c", code).splitlines()


def test_twice_is_once(recorded: list[str]) -> None:
    original = dist.all_reduce
    assert not instrument.is_enabled()
    instrument.enable()
    wrapper = dist.all_reduce
    instrument.enable()
    assert dist.all_reduce is wrapper is not original
    assert inspect.unwrap(wrapper, stop=lambda inner: inner is original) is original
    assert vars(wrapper)["__wrapped__"] is original
    assert instrument.is_enabled()
    for _ in range(2):
        instrument.disable()
        assert dist.all_reduce is original
        assert not instrument.is_enabled()


def test_from_many_threads_at_once(recorded: list[str]) -> None:
    original = dist.all_reduce
    barrier = threading.Barrier(8)

    def switch_often(number: int) -> None:
        barrier.wait()
        for _ in range(3):
            (instrument.enable if number % 2 else instrument.disable)()

    threads = [threading.Thread(target=switch_often, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    instrument.disable()
    assert dist.all_reduce is original


class Part(ModuleType):
    """A part that replaces an attribute of itself, and may fail then."""

    value = "original"

    def __init__(self, name: str, *, fails: bool) -> None:
        super().__init__(name)
        self._fails = fails

    def install(self, patches: Patches) -> None:
        patches.replace(self, "value", "new")
        if self._fails:
            raise AttributeError("this torch has no such thing")


def test_without_a_tool_that_records_nothing_is_replaced() -> None:
    originals = [dict(vars(owner)) for owner in (dist, torch.Tensor)]
    instrument.enable()
    assert instrument.is_enabled()
    assert [dict(vars(owner)) for owner in (dist, torch.Tensor)] == originals
    instrument.disable()
    assert not instrument.is_enabled()


def test_a_part_that_cannot_be_installed_is_left_out(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {"part_that_fails": True, "part_that_works": False}
    for name, fails in parts.items():
        monkeypatch.setitem(sys.modules, name, Part(name, fails=fails))
    monkeypatch.setattr(switch, "PARTS", (*parts, "part.that.is.missing"))
    with caplog.at_level(logging.INFO):
        instrument.enable()
    assert [sys.modules[name].value for name in parts] == ["original", "new"]
    assert [record.name for record in caplog.records] == ["traceprof.instrument"] * 2
    assert caplog.messages == [
        "part_that_fails is not instrumented: AttributeError: this torch has no such thing",
        "part.that.is.missing is not instrumented: ModuleNotFoundError: No module named 'part'",
    ]
    instrument.disable()
    assert sys.modules["part_that_works"].value == "original"


@pytest.mark.parametrize("missing", long_after(1, ["torch", "torch.distributed"]))
def test_without_torch_or_its_distributed_half_nothing_is_raised(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; import instrument\n"
        "from instrument.core import nvtx_ranges; nvtx_ranges.is_recording = lambda: True\n"
        "instrument.enable()\n"
        "instrument.watch()\n"
        "with instrument.step(): print('ran')\n"
        "instrument.disable()"
    )
    if missing == "torch.distributed":
        code = "import torch; del torch.distributed\n" + code
    assert run(code) == ["ran"]
