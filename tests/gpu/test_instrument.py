"""What `instrument` does beside a real GPU: skipped where PyTorch finds none."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

import instrument
from tests.support.recording import pushed, record
from traceprof import labels

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch finds no GPU with CUDA"
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record ranges, and leave no wrapper behind."""
    yield record(monkeypatch.setattr)
    instrument.disable()


READ: dict[str, Callable[[torch.Tensor], object]] = {
    "item d2h bytes=4": lambda tensor: tensor.item(),
    "float d2h bytes=4": float,
    "bool d2h bytes=4": bool,
    "tolist d2h bytes=4": lambda tensor: tensor.tolist(),
    "nonzero d2h": lambda tensor: tensor.nonzero(),
}


@pytest.mark.parametrize("label", READ)
def test_what_reads_a_tensor_on_the_host_is_named_once(recorded: list[str], label: str) -> None:
    tensor = torch.ones((), device="cuda")
    instrument.enable()
    READ[label](tensor)
    assert recorded == [f"push {label} non_blocking=0", "pop"]


def test_copies_say_whether_their_memory_is_pinned(recorded: list[str]) -> None:
    pageable, pinned = torch.ones(4), torch.ones(4).pin_memory()
    instrument.enable()
    for tensor in (pageable, pinned):
        tensor.to("cuda", non_blocking=True)
    assert pushed(recorded) == [
        f"to h2d bytes=16 pinned={is_pinned} non_blocking=1" for is_pinned in (0, 1)
    ]


def train() -> list[torch.Tensor]:
    """Train some steps with DDP over NCCL; return parameters and gradients."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*(parameter.detach().clone() for parameter in model.parameters()), *gradients]


@pytest.fixture
def _nccl(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    instrument.disable()
    dist.destroy_process_group()


@pytest.mark.usefixtures("_nccl")
def test_gradients_are_the_same_and_all_ranges_close(recorded: list[str]) -> None:
    without = train()
    instrument.enable()
    trained = train()
    assert all(torch.equal(new, old) for new, old in zip(trained, without, strict=True))
    texts = pushed(recorded)
    assert recorded.count("pop") == len(texts)
    # Autograd runs on a thread of the device: what it begins belongs to one backward pass.
    kinds = [text for text in texts if text in {labels.FORWARD, labels.BACKWARD}]
    assert kinds == [labels.FORWARD, labels.BACKWARD] * 3
    buckets = [event for event in recorded if event.startswith("start bucket")]
    ends = [event for event in recorded if event.startswith("end bucket")]
    assert len(buckets) == len(ends) > 3


@pytest.mark.usefixtures("_nccl")
def test_memory_does_not_grow_with_calls(recorded: list[str]) -> None:
    tensor = torch.ones(4, device="cuda")
    instrument.enable()
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        recorded.clear()
    del work
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.usefixtures("_nccl")
def test_coalesced_operations_are_named_once(recorded: list[str]) -> None:
    tensors = [torch.ones(4, device="cuda") for _ in range(3)]
    instrument.enable()
    with distributed_c10d._coalescing_manager(
        device=torch.device("cuda"), async_ops=True
    ) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    texts = pushed(recorded)
    assert recorded.count("pop") == len(texts)
    assert [text.split()[0] for text in texts].count("all_reduce") == 3
