"""A program of three ranks over Gloo that calls every communication function once.

Each rank runs all scenarios without and then with `instrument`, and writes what both gave, and the
ranges of the second, to a file: `{scenario: {"plain": …, "named": …, "events": […]}}`. A barrier
ends each scenario.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import _broadcast_coalesced
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

import instrument
from instrument.core import wrapping
from tests.support.recording import record

SIZE = 3
HELD_ISEND, HELD_IRECV, HELD_ALL_REDUCE = dist.isend, dist.irecv, partial(dist.all_reduce)
"""What somebody held from before it was wrapped."""


def full(rank: int, numel: int = 6) -> torch.Tensor:
    return torch.arange(numel, dtype=torch.float32) + 100 * rank


class Program:
    """The scenarios, by the names of the functions they call; each returns what it received."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.world = distributed_c10d._get_default_group()
        self.last_two = dist.new_group([1, 2], group_desc="last two")
        self.mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("all",))

    def all_reduce(self) -> object:
        tensor = full(self.rank)
        dist.all_reduce(tensor)
        return tensor

    def all_reduce_max_of_doubles(self) -> object:
        tensor = full(self.rank).double()
        dist.all_reduce(op=dist.ReduceOp.MAX, tensor=tensor, group=self.world)
        return tensor

    def all_reduce_coalesced(self) -> object:
        tensors = [full(self.rank), full(self.rank, 2)]
        dist.all_reduce_coalesced(tensors)
        return tensors

    def all_reduce_async(self) -> object:
        tensor = full(self.rank)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        return tensor

    def broadcast(self) -> object:
        tensor = full(self.rank)
        dist.broadcast(tensor, 2)
        return tensor

    def broadcast_in_a_group(self) -> object:
        tensor = full(self.rank)
        if self.rank:
            dist.broadcast(tensor, group_src=1, group=self.last_two)
        return tensor

    def broadcast_of_no_member(self) -> object:
        tensor = full(self.rank)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.broadcast(tensor, 1, self.last_two)
        return [tensor, [str(warning.message) for warning in caught]]

    def reduce(self) -> object:
        tensor = full(self.rank)
        dist.reduce(tensor, 1, dist.ReduceOp.SUM)
        return tensor if self.rank == 1 else None

    def all_gather(self) -> object:
        outputs = [torch.zeros(6) for _ in range(SIZE)]
        dist.all_gather(outputs, full(self.rank))
        return outputs

    def all_gather_into_tensor(self) -> object:
        output = torch.zeros(18)
        dist.all_gather_into_tensor(output, full(self.rank))
        return output

    def all_gather_single(self) -> object:
        output = torch.zeros(18)
        dist.all_gather_single(output, full(self.rank))
        return output

    def _all_gather_base(self) -> object:
        output = torch.zeros(18)
        distributed_c10d._all_gather_base(output, full(self.rank))
        return output

    def all_gather_coalesced(self) -> object:
        outputs = [[torch.zeros(6), torch.zeros(2)] for _ in range(SIZE)]
        dist.all_gather_coalesced(outputs, [full(self.rank), full(self.rank, 2)])
        return outputs

    def gather(self) -> object:
        outputs = [torch.zeros(6) for _ in range(SIZE)] if self.rank == 0 else None
        dist.gather(full(self.rank), outputs)
        return outputs

    def scatter(self) -> object:
        output = torch.zeros(2)
        inputs = [full(number, 2) for number in range(SIZE)] if self.rank == 1 else None
        dist.scatter(output, inputs, src=1)
        return output

    def reduce_scatter(self) -> object:
        output = torch.zeros(2)
        dist.reduce_scatter(output, list(full(self.rank).chunk(SIZE)))
        return output

    def reduce_scatter_tensor(self) -> object:
        output = torch.zeros(2)
        dist.reduce_scatter_tensor(output, full(self.rank))
        return output

    def reduce_scatter_single(self) -> object:
        output = torch.zeros(2)
        dist.reduce_scatter_single(output=output, input=full(self.rank))
        return output

    def _reduce_scatter_base(self) -> object:
        output = torch.zeros(2)
        distributed_c10d._reduce_scatter_base(output, full(self.rank))
        return output

    def all_to_all_single(self) -> object:
        output = torch.zeros(6)
        dist.all_to_all_single(output, full(self.rank))
        return output

    def all_to_all(self) -> object:
        outputs = [torch.zeros(2) for _ in range(SIZE)]
        dist.all_to_all(outputs, list(full(self.rank).chunk(SIZE)))
        return outputs

    def barrier(self) -> object:
        return dist.barrier()

    def monitored_barrier(self) -> object:
        return dist.monitored_barrier()

    def all_gather_object(self) -> object:
        objects = [None] * SIZE
        dist.all_gather_object(objects, {"rank": self.rank})
        return objects

    def gather_object(self) -> object:
        objects = [None] * SIZE if self.rank == 2 else None
        dist.gather_object(self.rank, objects, dst=2)
        return objects

    def broadcast_object_list(self) -> object:
        objects = ["one", 2] if self.rank == 0 else [None, None]
        dist.broadcast_object_list(objects)
        return objects

    def scatter_object_list(self) -> object:
        output = [None]
        dist.scatter_object_list(output, ["a", "b", "c"] if self.rank == 0 else None, 0)
        return output

    def _broadcast_coalesced(self) -> object:
        tensors = [full(self.rank), full(self.rank, 2)]
        if self.rank:
            _broadcast_coalesced(self.last_two, tensors, 1 << 20, 0)
        return tensors

    def send_and_recv(self) -> object:
        tensor = full(self.rank)
        if self.rank == 0:
            dist.send(tensor, 2)
            dist.send(tensor, dst=1)
            return dist.recv(tensor, 1), tensor
        sender = dist.recv(tensor, src=0)
        if self.rank == 1:
            dist.send(tensor, 0)
        return sender, tensor

    def isend_and_irecv_in_a_group(self) -> object:
        tensor = full(self.rank)
        if self.rank == 1:
            work = dist.isend(tensor, group=self.last_two, group_dst=1)
        if self.rank == 2:
            work = dist.irecv(tensor, 1, self.last_two)
        if self.rank:
            assert work is not None
            work.wait()
        return tensor

    def batch_isend_irecv(self) -> object:
        return self._ring(dist.isend, dist.irecv)

    def batch_isend_irecv_held(self) -> object:
        return self._ring(HELD_ISEND, HELD_IRECV)

    def _ring(self, isend: Any, irecv: Any) -> object:
        received = torch.zeros(6)
        around = [
            dist.P2POp(isend, full(self.rank), (self.rank + 1) % SIZE),
            dist.P2POp(irecv, received, (self.rank - 1) % SIZE),
        ]
        for work in dist.batch_isend_irecv(around):
            work.wait()
        return received

    def send_object_list_and_recv_object_list(self) -> object:
        objects: list[object] = [None]
        if self.rank == 0:
            dist.send_object_list(["hello"], dst=1)
        if self.rank == 1:
            dist.recv_object_list(objects, 0)
        return objects

    def coalescing(self) -> object:
        tensors = [full(self.rank), full(self.rank, 2)]
        with distributed_c10d._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        return tensors

    def coalescing_async(self) -> object:
        tensors = [full(self.rank), full(self.rank, 2)]
        with distributed_c10d._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor, async_op=True)
        manager.wait()
        return tensors

    def method(self) -> object:
        tensor = full(self.rank)
        self.world.allreduce([tensor]).wait()
        return tensor

    def methods_with_peers(self) -> object:
        tensor = full(self.rank)
        if self.rank == 1:
            self.last_two.send([tensor], 1, 0).wait()
        if self.rank == 2:
            self.last_two.recv([tensor], 0, 0).wait()
        if self.rank:
            self.last_two.broadcast(tensor, 0).wait()
        return tensor

    def recv_from_anybody(self) -> object:
        tensor = full(self.rank)
        if self.rank == 0:
            dist.send(tensor, 1)
            dist.send(tensor, 1)
        if self.rank == 1:
            return dist.recv(tensor), dist.recv(tensor, 0), tensor
        return None

    def held(self) -> object:
        tensor = full(self.rank)
        HELD_ALL_REDUCE(tensor)
        return tensor

    def functional_all_reduce(self) -> object:
        return functional.all_reduce(full(self.rank), "sum", self.world) + 0

    def functional_broadcast(self) -> object:
        if self.rank:
            return functional.broadcast(full(self.rank), 1, self.last_two) + 0
        return None

    def functional_all_gather_tensor(self) -> object:
        return functional.all_gather_tensor(full(self.rank), 0, self.mesh) + 0

    def functional_reduce_scatter_tensor(self) -> object:
        return functional.reduce_scatter_tensor(full(self.rank), "sum", 0, (self.mesh, 0)) + 0

    def functional_all_to_all_single(self) -> object:
        group = self.mesh.get_group().group_name
        return functional.all_to_all_single(full(self.rank), None, None, group) + 0

    def functional_all_reduce_coalesced(self) -> object:
        tensors = [full(self.rank), full(self.rank, 2)]
        results = functional.all_reduce_coalesced(tensors, "sum", self.world)
        return [result + 0 for result in results]

    def functional_all_gather_into_tensor_coalesced(self) -> object:
        tensors = [full(self.rank), full(self.rank, 2)]
        results = functional.all_gather_into_tensor_coalesced(tensors, self.world)
        return [result + 0 for result in results]

    def functional_reduce_scatter_tensor_coalesced(self) -> object:
        tensors = [full(self.rank), full(self.rank, 3)]
        results = functional.reduce_scatter_tensor_coalesced(tensors, "sum", [0, 0], self.world)
        return [result + 0 for result in results]

    def functional_permute_tensor(self) -> object:
        return functional.permute_tensor(full(self.rank), [1, 2, 0], self.world) + 0


def scenarios(program: Program) -> dict[str, Callable[[], object]]:
    """Return the scenarios in the order of the text."""
    helpers = {"_ring"}
    names = [name for name in vars(Program) if not name.startswith("__") and name not in helpers]
    return {name: getattr(program, name) for name in names}


def plain(value: object) -> Any:
    """Return tensors as their bytes, for JSON."""
    if isinstance(value, torch.Tensor):
        return value.contiguous().view(torch.uint8).tolist()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def run(rank: int, store: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE)
    warnings.simplefilter("ignore")  # of functions that are deprecated by now
    program = Program(rank)
    without = {name: plain(scenario()) for name, scenario in scenarios(program).items()}
    events = record(setattr)
    instrument.enable()
    seen: dict[str, Any] = {}
    for name, scenario in scenarios(program).items():
        seen[name] = {"named": plain(scenario()), "plain": without[name]}
        dist.barrier()  # what another rank has yet to end would come later
        seen[name]["events"] = list(events)
        events.clear()
    instrument.disable()
    seen["complained"] = bool(wrapping.complained)
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()
