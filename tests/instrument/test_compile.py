"""torch.compile traces through wrapped functions as through the originals."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import instrument
from tests.support.recording import compiled, pushed
from tests.support.selection import long_after

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("beside_another")]

Program = Callable[[torch.Tensor], torch.Tensor]


def legacy(tensor: torch.Tensor) -> torch.Tensor:
    doubled = tensor * 2
    dist.all_reduce(doubled)
    output = torch.zeros(8)
    dist.all_gather_single(output, doubled)
    return output + 1


def new(tensor: torch.Tensor) -> torch.Tensor:
    summed = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)  # type: ignore[arg-type]
    gathered = functional.all_gather_single(summed, 0, dist.group.WORLD)  # type: ignore[arg-type]
    return functional.wait_tensor(gathered) + 1  # type: ignore[no-untyped-call]


def breaking(tensor: torch.Tensor) -> torch.Tensor:
    doubled = tensor * 2
    work = dist.all_reduce(doubled, async_op=True)
    assert work is not None
    work.wait()
    return doubled + 1


@pytest.mark.parametrize("program", long_after(1, [legacy, new]))
def test_one_graph_stays_one_graph_without_ranges(recorded: list[str], program: Program) -> None:
    result, operators = compiled(program, torch.arange(4.0), fullgraph=True)
    instrument.enable()
    assert torch.equal(program(torch.arange(4.0)), result)
    recorded.clear()
    again, traced = compiled(program, torch.arange(4.0), fullgraph=True)
    assert traced == operators
    assert torch.equal(again, result)
    assert pushed(recorded) == []


def test_graphs_break_where_they_did_and_what_runs_between_is_named(recorded: list[str]) -> None:
    result, operators = compiled(breaking, torch.arange(4.0))
    instrument.enable()
    again, traced = compiled(breaking, torch.arange(4.0))
    assert traced == operators
    assert torch.equal(again, result)
    assert pushed(recorded) == ["all_reduce bytes=16 dtype=float32 group=0 rank=0 size=2 seq=0"]


def test_what_was_compiled_before_or_meanwhile_runs_after(recorded: list[str]) -> None:
    torch._dynamo.reset()
    before = torch.compile(legacy, backend="eager", fullgraph=True)
    expected = before(torch.arange(4.0))
    instrument.enable()
    meanwhile = torch.compile(functools.partial(new), backend="eager", fullgraph=True)
    assert torch.equal(before(torch.arange(4.0)), expected)
    assert torch.equal(meanwhile(torch.arange(4.0)), expected)
    instrument.disable()
    for run in (before, meanwhile):
        assert torch.equal(run(torch.arange(4.0)), expected)


def transferring(tensor: torch.Tensor) -> torch.Tensor:
    received = torch.zeros(4)
    there = dist.P2POp(dist.isend, tensor * 2, 1)
    back = dist.P2POp(dist.irecv, received, 1)
    for work in dist.batch_isend_irecv([there, back]):
        work.wait()
    return received + 1


def test_a_compiled_transfer(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "enable_p2p_compilation", True)
    _, operators = compiled(transferring, torch.arange(4.0))
    instrument.enable()
    _, traced = compiled(transferring, torch.arange(4.0))
    assert traced == operators


@pytest.mark.parametrize("strict", long_after(1, [False, True]))
def test_export_of_a_collective(recorded: list[str], strict: bool) -> None:
    class Module(torch.nn.Module):
        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return legacy(tensor)

    def exported() -> list[str]:
        torch._dynamo.reset()
        program = torch.export.export(Module(), (torch.arange(4.0),), strict=strict)
        return [str(node.target) for node in program.graph.nodes]

    without = exported()
    instrument.enable()
    assert exported() == without
    assert pushed(recorded) == []
