"""Copies between host and devices are named; everything else of a tensor is as it was."""

import copy
import logging
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import instrument
from instrument.wraps import tensor_copies
from tests.support.recording import SeenCalls, pushed
from tests.support.selection import known, long_after

NAMES = tuple(tensor_copies.LABELS)
CPU, CUDA0, CUDA1 = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
CUDA, XPU, META = torch.device("cuda"), torch.device("xpu", 0), torch.device("meta")


@pytest.fixture
def _gpu_1_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_copies, "_current", lambda _: 1)


@pytest.fixture
def _to_meta_is_to_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies to `meta`, of which any machine is capable, count as copies to a GPU."""
    real = tensor_copies.direction

    def direction(source: torch.device, target: torch.device) -> str | None:
        return real(*(CUDA0 if device.type == "meta" else device for device in (source, target)))

    monkeypatch.setattr(tensor_copies, "direction", direction)


@pytest.mark.usefixtures("_gpu_1_is_current")
@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (CPU, CPU, None), (CPU, CUDA, "h2d"), (CPU, CUDA1, "h2d"), (CUDA0, CPU, "d2h"),
        (CUDA0, CUDA0, None), (CUDA0, CUDA1, "p2p"), (CUDA0, CUDA, "p2p"), (CUDA1, CUDA, None),
        (CUDA0, XPU, "d2d"), (CPU, META, None), (META, CUDA0, None),
    ],
)  # fmt: skip
def test_direction(source: torch.device, target: torch.device, expected: str | None) -> None:
    assert tensor_copies.direction(source, target) == expected


def labelled(name: str, of: torch.Tensor, /, *args: Any, **kwargs: Any) -> str | None:
    return tensor_copies.LABELS[name](of, *args, **kwargs)


@pytest.mark.usefixtures("_gpu_1_is_current")
def test_what_a_label_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        host, device = torch.empty(2, 3), torch.empty(2, 3, device="cuda:0")
        half = torch.empty(3, device="cuda:1", dtype=torch.float16)
        sparse = torch.empty(2, 3, layout=torch.sparse_coo)
    pinned: set[int] = set()
    monkeypatch.setattr(tensor_copies, "_PLAIN", {FakeTensor})
    monkeypatch.setattr(tensor_copies, "_is_pinned", lambda tensor: id(tensor) in pinned)
    h2d, d2h = "bytes=24 pinned=0 non_blocking=0", "bytes=24 pinned=0 non_blocking=0"
    assert labelled("to", host, "cuda") == f"to h2d {h2d}"
    assert labelled("to", host, torch.device("cuda")) == f"to h2d {h2d}"
    assert labelled("to", host, device=torch.device("cuda", 1)) == f"to h2d {h2d}"
    assert labelled("to", host, device) == f"to h2d {h2d}"
    assert labelled("to", host, tensor=device) == f"to h2d {h2d}"
    assert labelled("to", device, CPU, None, False) == f"to d2h {d2h}"
    assert labelled("to", device, "cuda:1") == "to p2p bytes=24 non_blocking=0"
    assert labelled("to", device, "cpu", non_blocking=True).endswith("pinned=1 non_blocking=1")  # type: ignore[union-attr]
    assert known(labelled("to", host, "cuda:0", None, True, False)).endswith("non_blocking=1")
    assert labelled("cuda", host, 1) == f"cuda h2d {h2d}"
    assert labelled("cuda", host, "cuda:0") == f"cuda h2d {h2d}"
    assert labelled("cuda", host) == f"cuda h2d {h2d}"
    assert labelled("cuda", half) is None
    assert labelled("cpu", device) == f"cpu d2h {d2h}"
    assert labelled("copy_", device, host) == f"copy_ h2d {h2d}"
    assert labelled("copy_", host, device) == f"copy_ d2h {d2h}"
    assert labelled("to", sparse, "cuda") == "to h2d pinned=0 non_blocking=0"
    assert labelled("pin_memory", host) == "pin_memory bytes=24"
    assert labelled("pin_memory", device) is None
    pinned.add(id(host))
    assert labelled("pin_memory", host) is None
    assert labelled("copy_", device, host, True) == "copy_ h2d bytes=24 pinned=1 non_blocking=1"
    assert labelled("copy_", host, device) == "copy_ d2h bytes=24 pinned=1 non_blocking=0"
    assert labelled("copy_", device, host[0]) == f"copy_ h2d {h2d}"  # what it fills
    assert labelled("nonzero", device) == "nonzero d2h non_blocking=0"
    assert labelled("nonzero", host) is None
    assert labelled("tolist", device) == "tolist d2h bytes=24 non_blocking=0"


READ: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda tensor: tensor.item(),
    "bool": bool,
    "complex": complex,
    "float": float,
    "int": int,
    "index": operator.index,
    "tolist": lambda tensor: tensor.tolist(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", long_after(3, READ))
def test_what_reads_a_tensor_on_the_host_is_a_copy_that_waits(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read = READ[name]
    instrument.enable()
    tensor = torch.tensor(3)
    assert read(tensor) in {3, True}
    assert recorded == []  # it is on the host
    monkeypatch.setattr(tensor_copies, "direction", lambda *_: "d2h")
    with pytest.raises(RuntimeError):  # there is nothing to read: the label comes first
        read(torch.empty((), dtype=torch.int64, device="meta"))
    assert recorded == [f"push {name} d2h bytes=8 non_blocking=0", "pop"]


@pytest.mark.parametrize(
    ("source", "target", "non_blocking", "crossing"),
    [
        ("cpu", "cuda:0", 0, 2),
        ("cpu", "cuda:0", 1, 4),
        ("cuda:0", "cpu", 0, 4),
        ("cuda:0", "cpu", 1, 2),
    ],
)
def test_a_copy_that_converts_moves_what_crosses(
    monkeypatch: pytest.MonkeyPatch, source: str, target: str, non_blocking: int, crossing: int
) -> None:
    monkeypatch.setattr(tensor_copies, "_is_pinned", lambda _: False)
    with FakeTensorMode():
        tensor = torch.empty(5, device=source)
    label = labelled("to", tensor, target, torch.float16, bool(non_blocking))
    assert label is not None
    assert f"bytes={5 * crossing} " in label


@pytest.mark.usefixtures("_to_meta_is_to_gpu")
def test_what_moves_has_a_range(recorded: list[str]) -> None:
    instrument.enable()
    tensor = torch.ones(3)
    tensor.to("meta")
    label = "push to h2d bytes=12 pinned=0 non_blocking=0"
    assert recorded == [label, "pop"]
    torch.nn.Linear(3, 1, bias=False).to("meta")  # parameters are plain tensors, too
    assert recorded == [label, "pop"] * 2
    recorded.clear()
    with pytest.raises(RuntimeError, match="no data"):
        tensor.copy_(torch.ones(3, device="meta"))
    assert recorded == ["push copy_ d2h bytes=12 pinned=0 non_blocking=0", "pop"]


def test_what_stays_opens_nothing(recorded: list[str]) -> None:
    instrument.enable()
    tensor = torch.ones(3)
    for result in (
        tensor.to(torch.float64),
        tensor.to("cpu", copy=True),
        tensor.to(device=CPU, dtype=torch.float16),
        tensor.to(tensor),
        tensor.to(dtype=torch.int32),
        tensor.cpu(),
        tensor.copy_(torch.zeros(3)),
        tensor.to("meta"),
    ):
        assert result.shape == (3,)
    assert recorded == []


def test_wrong_arguments_fail_as_they_do_without(
    recorded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[Callable[[torch.Tensor], object]] = [
        lambda tensor: tensor.to("nowhere"),
        lambda tensor: tensor.to("cpu", "cpu"),  # type: ignore[call-overload]
        lambda tensor: tensor.copy_(None),  # type: ignore[arg-type]
        lambda tensor: tensor.cpu(1, 2, 3),  # type: ignore[call-arg,arg-type]
    ]

    def failures() -> list[str]:
        found = []
        for call in wrong:
            with pytest.raises((RuntimeError, TypeError)) as failure:
                call(torch.ones(3))
            found.append(str(failure.value))
        return found

    without = failures()
    instrument.enable()
    with caplog.at_level(logging.ERROR):
        assert failures() == without
    assert recorded == []


def test_the_class_keeps_its_methods(recorded: list[str]) -> None:
    before = [getattr(torch.Tensor, name) for name in NAMES]
    instrument.enable()
    assert set(NAMES) <= set(vars(torch.Tensor))
    assert [getattr(torch.Tensor, name) for name in NAMES] == before
    assert torch.nn.Parameter.to is before[0]
    instrument.disable()
    assert set(NAMES).isdisjoint(vars(torch.Tensor))
    assert [getattr(torch.Tensor, name) for name in NAMES] == before


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functions: list[object] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    functions: list[object]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.functions.append(func)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("_to_meta_is_to_gpu")
def test_modes_and_subclasses_see_the_same_calls(recorded: list[str]) -> None:
    def run() -> list[object]:
        Subclass.functions = []
        plain, own = torch.ones(3), torch.ones(3).as_subclass(Subclass)
        for mode in (SeenCalls(), Dispatched()):
            with mode:
                plain.to("meta")
                plain.copy_(torch.zeros(3))
            Subclass.functions.extend(mode.functions)
        own.to("meta")
        own.copy_(own)
        return Subclass.functions

    without = run()
    instrument.enable()
    with_ranges = run()
    assert len(with_ranges) == len(without)
    assert all(new is old for new, old in zip(with_ranges, without, strict=True))
    assert pushed(recorded) == [
        "to h2d bytes=12 pinned=0 non_blocking=0",
        "to h2d bytes=12 non_blocking=0",  # whether it is pinned would be asked of the mode
    ]


@pytest.mark.usefixtures("_to_meta_is_to_gpu")
def test_nothing_is_asked_of_cuda_while_a_graph_is_captured(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_: torch.Tensor) -> bool:
        raise AssertionError("asked")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", ask)
    instrument.enable()
    torch.ones(3).to("meta")
    assert recorded == ["push to h2d bytes=12 non_blocking=0", "pop"]


@pytest.mark.usefixtures("_to_meta_is_to_gpu")
def test_autograd_vmap_and_copies(recorded: list[str]) -> None:
    instrument.enable()
    weight = torch.ones(3, requires_grad=True)
    weight.to(torch.float64).sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(weight.grad, torch.ones(3))  # type: ignore[arg-type]
    mapped = torch.vmap(lambda row: row.to(torch.float64).cpu())(torch.ones(2, 3))
    assert mapped.dtype == torch.float64
    assert torch.equal(copy.deepcopy(weight), weight)
    assert torch.equal(pickle.loads(pickle.dumps(weight)), weight)  # noqa: S301
    assert torch.equal(pickle.loads(pickle.dumps(weight.to))("cpu"), weight)  # noqa: S301
    lazy = torch.nn.LazyLinear(2).to(torch.float64).to("cpu")
    assert isinstance(lazy.weight, torch.nn.UninitializedParameter)


def test_fake_tensors_and_dtensors(recorded: list[str], alone: object) -> None:
    mesh = init_device_mesh("cpu", (1,))
    instrument.enable()
    with FakeTensorMode():
        assert torch.ones(3).to("meta").device == META
    spread = distribute_tensor(torch.ones(4), mesh)
    recorded.clear()
    assert isinstance(spread.to(torch.float64).cpu(), DTensor)
    assert recorded == []


def test_compiled_scripted_and_traced(recorded: list[str]) -> None:
    def program(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor.to(torch.float64).to("cpu") * 2
        return doubled.copy_(torch.ones_like(doubled)).cpu()

    def graphs() -> tuple[list[str], int]:
        torch._dynamo.reset()
        explained = torch._dynamo.explain(program)(torch.ones(3))
        nodes = [str(node.target) for graph in explained.graphs for node in graph.graph.nodes]
        return nodes, explained.graph_break_count

    without = graphs()
    instrument.enable()
    assert graphs() == without
    assert without[1] == 0
    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.zeros(3)), program(torch.zeros(3)))
    exported = torch.export.export(Traced(), (torch.ones(3),))
    assert torch.equal(exported.module()(torch.ones(3)), torch.ones(3).double())
    assert set(recorded) == {"push forward", "pop"}  # of the exported module


class Traced(torch.nn.Module):
    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.float64).to("cpu")
