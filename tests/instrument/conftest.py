"""What tests of `instrument` share: a record of its ranges, and everything as it was afterwards."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

import instrument
from instrument import training
from instrument.core import nvtx_ranges
from tests.support.recording import build_tool, record


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record `push …`, `pop`, `start …` and `end …`, as under a tool; steps count from 0."""
    monkeypatch.setattr(training, "_numbers", itertools.count())
    return record(monkeypatch.setattr)


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library of a tool that counts ranges."""
    return build_tool(tmp_path_factory.mktemp("tool"))


@pytest.fixture(autouse=True)
def _disabled_afterwards() -> Iterator[None]:
    """Leave no wrapper behind, and write ranges as before."""
    before = {**vars(nvtx_ranges)}
    yield
    instrument.disable()
    vars(nvtx_ranges).update(before)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """Give the default process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield distributed_c10d._get_default_group()
    instrument.disable()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def beside_another() -> Iterator[None]:
    """Let operations return at once, as if there were another rank."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    instrument.disable()
    dist.destroy_process_group()
