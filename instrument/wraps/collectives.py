"""Collectives of `torch.distributed`: functions by which a whole group moves tensors or objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from instrument.core import calls
from instrument.core.calls import Describe
from instrument.core.operations import Operation, operation
from instrument.core.patching import Patches

Group = dist.ProcessGroup | None

# The functions below have the parameters of the functions that they describe, in their order, used
# or not; parameters of other versions are passed by keyword.
# ruff: noqa: ARG001, A002


def one_tensor(
    tensor: Tensor, op: object = None, group: Group = None, async_op: bool = False, **_: object
) -> Operation:
    """Describe an all-reduce."""
    return operation(group, (tensor,), is_async=async_op)


def several_tensors(
    tensors: Tensor | Sequence[Tensor],
    op: object = None,
    group: Group = None,
    async_op: bool = False,
    **_: object,
) -> Operation:
    """Describe several all-reduces in one call."""
    return operation(group, _sequence(tensors), is_async=async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    **_: object,
) -> Operation:
    """Describe a broadcast."""
    return operation(group, (tensor,), "src", src, group_src, is_async=async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: object = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    **_: object,
) -> Operation:
    """Describe a reduction to one rank."""
    return operation(group, (tensor,), "dst", dst, group_dst, is_async=async_op)


def gather(
    tensor: Tensor,
    gather_list: object = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    **_: object,
) -> Operation:
    """Describe a gather to one rank, by one rank's input."""
    return operation(group, (tensor,), "dst", _first(dst, group_dst), group_dst, is_async=async_op)


def scatter(
    tensor: Tensor,
    scatter_list: object = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    **_: object,
) -> Operation:
    """Describe a scatter from one rank, by one rank's output."""
    return operation(group, (tensor,), "src", _first(src, group_src), group_src, is_async=async_op)


def all_gather(
    tensor_list: object, tensor: Tensor, group: Group = None, async_op: bool = False, **_: object
) -> Operation:
    """Describe an all-gather, by one rank's input."""
    return operation(group, (tensor,), is_async=async_op)


def all_gather_single(
    output_tensor: object,
    input_tensor: Tensor,
    group: Group = None,
    async_op: bool = False,
    **_: object,
) -> Operation:
    """Describe an all-gather, by one rank's input."""
    return operation(group, (input_tensor,), is_async=async_op)


def all_gather_coalesced(
    output_tensor_lists: object,
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
    **_: object,
) -> Operation:
    """Describe several all-gathers in one call, by one rank's input."""
    return operation(group, input_tensor_list, is_async=async_op)


def reduce_scatter(
    output: Tensor,
    input_list: object,
    op: object = None,
    group: Group = None,
    async_op: bool = False,
    **_: object,
) -> Operation:
    """Describe a reduce-scatter, by one rank's output."""
    return operation(group, (output,), is_async=async_op)


def reduce_scatter_single(
    output: Tensor,
    input: object,
    op: object = None,
    group: Group = None,
    async_op: bool = False,
    **_: object,
) -> Operation:
    """Describe a reduce-scatter, by one rank's output."""
    return operation(group, (output,), is_async=async_op)


def all_to_all(
    output_tensor_list: object,
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
    **_: object,
) -> Operation:
    """Describe an all-to-all, by this rank's input."""
    return operation(group, input_tensor_list, is_async=async_op)


def all_to_all_single(
    output: object,
    input: Tensor,
    output_split_sizes: object = None,
    input_split_sizes: object = None,
    group: Group = None,
    async_op: bool = False,
    **_: object,
) -> Operation:
    """Describe an all-to-all, by this rank's input."""
    return operation(group, (input,), is_async=async_op)


def barrier(group: Group = None, async_op: bool = False, *_: object, **__: object) -> Operation:
    """Describe a barrier."""
    return operation(group, is_async=async_op)


def monitored_barrier(group: Group = None, *_: object, **__: object) -> Operation:
    """Describe a barrier that reports missing ranks."""
    return operation(group)


def all_gather_object(
    object_list: object, obj: object, group: Group = None, **_: object
) -> Operation:
    """Describe an all-gather of objects, whose sizes are known only inside."""
    return operation(group)


def gather_object(
    obj: object,
    object_gather_list: object = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    **_: object,
) -> Operation:
    """Describe a gather of objects to one rank."""
    return operation(group, (), "dst", _first(dst, group_dst), group_dst)


def broadcast_object_list(
    object_list: object,
    src: int | None = None,
    group: Group = None,
    device: object = None,
    group_src: int | None = None,
    **_: object,
) -> Operation:
    """Describe a broadcast of objects."""
    return operation(group, (), "src", _first(src, group_src), group_src)


def scatter_object_list(
    scatter_object_output_list: object,
    scatter_object_input_list: object = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
    **_: object,
) -> Operation:
    """Describe a scatter of objects from one rank."""
    return operation(group, (), "src", _first(src, group_src), group_src)


def broadcast_coalesced(
    process_group: Group, tensors: Sequence[Tensor], buffer_size: int, src: int = 0
) -> Operation:
    """Describe DDP's broadcast of the first rank's parameters and buffers."""
    return operation(process_group, tensors, "src", None, src)


def verify_params(process_group: Group, *_: object, **__: object) -> Operation:
    """Describe DDP's comparison of the parameters' shapes."""
    return operation(process_group)


DESCRIBE: Mapping[str, Describe] = {
    "all_gather": all_gather,
    "all_gather_coalesced": all_gather_coalesced,
    "all_gather_into_tensor": all_gather_single,
    "all_gather_object": all_gather_object,
    "all_gather_single": all_gather_single,
    "all_reduce": one_tensor,
    "all_reduce_coalesced": several_tensors,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "barrier": barrier,
    "broadcast": broadcast,
    "broadcast_object_list": broadcast_object_list,
    "gather": gather,
    "gather_into_tensor": gather,
    "gather_object": gather_object,
    "gather_single": gather,
    "monitored_barrier": monitored_barrier,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_single": reduce_scatter_single,
    "reduce_scatter_tensor": reduce_scatter_single,
    "scatter": scatter,
    "scatter_object_list": scatter_object_list,
    "_all_gather_base": all_gather_single,
    "_broadcast_coalesced": broadcast_coalesced,
    "_reduce_scatter_base": reduce_scatter_single,
    "_verify_params_across_processes": verify_params,
}
"""Readers of the arguments of each function, for every version of PyTorch from 2.4 on."""


def install(patches: Patches) -> None:
    """Wrap every collective, under all names in all modules."""
    calls.install(patches, calls.wrapped((distributed_c10d, dist), DESCRIBE))


def _sequence(tensors: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return (tensors,) if isinstance(tensors, Tensor) else tensors


def _first(rank: int | None, group_rank: int | None) -> int | None:
    """Return the global rank; 0 if the caller gives none."""
    return 0 if rank is None and group_rank is None else rank
