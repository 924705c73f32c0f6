"""Functional collectives, which DTensor and tensor parallelism use, and waiting for their results.

They take a tensor and return a new one that waits for the operation when it is first used. In a
backward pass of autograd and in a compiled graph they are operators that call no Python function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import _functional_collectives, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from instrument.core import calls
from instrument.core.calls import Describe
from instrument.core.operations import Operation, operation
from instrument.core.patching import Patches

if TYPE_CHECKING:
    from torch import Tensor


# The parameters are those of the described functions, used or not: their first is `self`, though
# they are not methods.
# ruff: noqa: ARG001


def all_reduce(self: Tensor, reduceOp: str, group: Any, tag: str = "") -> Operation:  # noqa: ANN401, N803
    """Describe an all-reduce."""
    return operation(_resolve(group, tag), (self,))


def broadcast(self: Tensor, src: int, group: Any, tag: str = "") -> Operation:  # noqa: ANN401
    """Describe a broadcast; its source is a rank of the group."""
    return operation(_resolve(group, tag), (self,), "src", None, src)


def all_gather(self: Tensor, gather_dim: int, group: Any, tag: str = "") -> Operation:  # noqa: ANN401
    """Describe an all-gather, by one rank's input."""
    return operation(_resolve(group, tag), (self,))


def reduce_scatter(
    self: Tensor,
    reduceOp: str,  # noqa: N803
    scatter_dim: int,
    group: Any,  # noqa: ANN401
    tag: str = "",
) -> Operation:
    """Describe a reduce-scatter, by one rank's output."""
    return operation(_resolve(group, tag), (self,), is_split=True)


def all_to_all(
    self: Tensor,
    output_split_sizes: object,
    input_split_sizes: object,
    group: Any,  # noqa: ANN401
    tag: str = "",
) -> Operation:
    """Describe an all-to-all, by this rank's input."""
    return operation(_resolve(group, tag), (self,))


def permute(self: Tensor, src_dst: object, group: Any, tag: str = "") -> Operation:  # noqa: ANN401
    """Describe a permutation, in which every rank sends to one other."""
    return operation(_resolve(group, tag), (self,))


def all_reduce_coalesced(
    self: Sequence[Tensor],
    reduceOp: str,  # noqa: N803
    group: Any,  # noqa: ANN401
    tag: str = "",
) -> Operation:
    """Describe several all-reduces in one call."""
    return operation(_resolve(group, tag), self)


def all_gather_coalesced(self: Sequence[Tensor], group: Any, tag: str = "") -> Operation:  # noqa: ANN401
    """Describe several all-gathers in one call, by one rank's input."""
    return operation(_resolve(group, tag), self)


def reduce_scatter_coalesced(
    inputs: Sequence[Tensor],
    reduceOp: str,  # noqa: N803
    scatter_dim: object,
    group: Any,  # noqa: ANN401
    tag: str = "",
) -> Operation:
    """Describe several reduce-scatters in one call, by one rank's output."""
    return operation(_resolve(group, tag), inputs, is_split=True)


DESCRIBE: Mapping[str, Describe] = {
    "all_gather_into_tensor_coalesced": all_gather_coalesced,
    "all_gather_single": all_gather,
    "all_gather_single_autograd": all_gather,
    "all_gather_single_coalesced": all_gather_coalesced,
    "all_gather_tensor": all_gather,
    "all_gather_tensor_autograd": all_gather,
    "all_reduce": all_reduce,
    "all_reduce_coalesced": all_reduce_coalesced,
    "all_to_all_single": all_to_all,
    "all_to_all_single_autograd": all_to_all,
    "broadcast": broadcast,
    "permute_tensor": permute,
    "reduce_scatter_single": reduce_scatter,
    "reduce_scatter_single_autograd": reduce_scatter,
    "reduce_scatter_single_coalesced": reduce_scatter_coalesced,
    "reduce_scatter_tensor": reduce_scatter,
    "reduce_scatter_tensor_autograd": reduce_scatter,
    "reduce_scatter_tensor_coalesced": reduce_scatter_coalesced,
}
"""Readers of the arguments of each function, for every version of PyTorch from 2.4 on."""


def install(patches: Patches) -> None:
    """Wrap every functional collective and every wait for a result."""
    wait = _functional_collectives.wait_tensor
    pairs = calls.wrapped((_functional_collectives,), DESCRIBE)
    calls.install(patches, [*pairs, (wait, calls.around_wait(wait))])


def _resolve(group: Any, tag: str) -> Any:  # noqa: ANN401
    if isinstance(group, DeviceMesh):
        return group.get_group()
    if isinstance(group, tuple):
        mesh, dimension = group
        return mesh.get_group(dimension)
    if isinstance(group, str):
        return _resolve_process_group(group)  # type: ignore[arg-type]
    if isinstance(group, list):
        return distributed_c10d._find_pg_by_ranks_and_tag(tag, group)  # noqa: SLF001
    return group
