"""Modules have ranges with their paths, as deep as is asked for, and none by default."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import instrument
from instrument.core.nvtx_ranges import MODULES
from instrument.wraps import modules
from tests.support.recording import compiled, pushed


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = torch.nn.Linear(3, 3), torch.nn.GELU()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.act(self.linear(batch))
        return output


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(3, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            batch = block(batch)
        output: torch.Tensor = self.head(batch)
        return output


BLOCKS = ["Net.blocks.0", "Net.blocks.1"]
OF_DEPTH = {
    1: ["Net"],
    2: ["Net", *BLOCKS, "Net.head"],
    3: ["Net", *(f"{block}{part}" for block in BLOCKS for part in ("", ".linear", ".act")),
        "Net.head"],
}  # fmt: skip


@pytest.fixture
def named(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Return a function that switches ranges on, down to a depth."""

    def enable(depth: int) -> list[str]:
        monkeypatch.setenv(MODULES, str(depth))
        instrument.enable()
        return recorded

    return enable


def paths(events: list[str]) -> list[str]:
    module = "module "
    return [label[len(module) :] for label in pushed(events) if label.startswith(module)]


@pytest.mark.parametrize("depth", OF_DEPTH)
def test_paths_down_to_a_depth(named: Callable[[int], list[str]], depth: int) -> None:
    model, batch = Net(), torch.ones(2, 3)
    expected = model(batch)
    events = named(depth)
    assert torch.equal(model(batch), expected)
    assert paths(events) == OF_DEPTH[depth]
    assert events[:2] == ["push forward", "push module Net"]
    assert events.count("pop") == len(pushed(events))
    instrument.disable()
    num = len(events)
    model(batch)
    assert len(events) == num


def test_a_part_that_runs_alone_keeps_the_name_that_it_had(
    named: Callable[[int], list[str]],
) -> None:
    model, batch = Net(), torch.ones(2, 3)
    events = named(1)
    model(batch)
    model.blocks[0](batch)
    assert paths(events) == ["Net", "Net.blocks.0"]


def test_modules_that_only_run_another_one_are_no_level(
    named: Callable[[int], list[str]], alone: dist.ProcessGroup
) -> None:
    del alone
    events = named(2)
    DistributedDataParallel(Net())(torch.ones(2, 3))
    assert paths(events) == OF_DEPTH[2]


def test_an_exception_closes_the_ranges(named: Callable[[int], list[str]]) -> None:
    model = Net()
    events = named(3)
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 4))
    assert events.count("pop") == len(pushed(events)) == 4
    model(torch.ones(2, 3))
    assert paths(events)[3:] == OF_DEPTH[3]


@pytest.mark.slow
def test_a_compiled_model_is_the_same_graphs(named: Callable[[int], list[str]]) -> None:
    model, batch = Net(), torch.ones(2, 3)
    expected, without = compiled(model, batch)
    events = named(3)
    output, traced = compiled(model, batch)
    assert traced == without
    assert torch.equal(output, expected)
    assert set(paths(events)) <= {"Net"}  # what is compiled is one


@pytest.mark.parametrize("text", ["", "deep", "1.5"])
def test_without_a_depth_modules_are_left_out(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(MODULES, text)
    instrument.enable()
    Net()(torch.ones(2, 3))
    assert recorded == ["push forward", "pop"]


def test_names_do_not_keep_modules() -> None:
    known = modules._Paths()
    model = Net()
    known.of(model, [])
    assert len(known._known) == 9
    del model
    assert len(known._known) == 0
