"""Functional collectives, which DTensor and tensor parallelism use, and waiting for their results.

They take a tensor and return a new one that waits for the operation when it is first used. In a
backward pass of autograd and in a compiled graph they are operators that call no Python function.
"""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import _functional_collectives, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from instrument.core import calls
from instrument.core.operations import Parameters
from instrument.core.patching import Patches

_MESSAGE = Parameters("self")  # their first parameter, though they are not methods
_SPLIT = Parameters("self", is_split=True)
_SPLIT_SEVERAL = Parameters("inputs", is_split=True)

PARAMETERS: dict[str, Parameters] = {
    "all_gather_into_tensor_coalesced": _MESSAGE,
    "all_gather_single": _MESSAGE,
    "all_gather_single_autograd": _MESSAGE,
    "all_gather_single_coalesced": _MESSAGE,
    "all_gather_tensor": _MESSAGE,
    "all_gather_tensor_autograd": _MESSAGE,
    "all_reduce": _MESSAGE,
    "all_reduce_coalesced": _MESSAGE,
    "all_to_all_single": _MESSAGE,
    "all_to_all_single_autograd": _MESSAGE,
    "broadcast": Parameters("self", "src", is_of_group=True),
    "permute_tensor": _MESSAGE,
    "reduce_scatter_single": _SPLIT,
    "reduce_scatter_single_autograd": _SPLIT,
    "reduce_scatter_single_coalesced": _SPLIT_SEVERAL,
    "reduce_scatter_tensor": _SPLIT,
    "reduce_scatter_tensor_autograd": _SPLIT,
    "reduce_scatter_tensor_coalesced": _SPLIT_SEVERAL,
}
"""How to read the arguments of each function, for every version of PyTorch from 2.4 on.

Of gathers the message is one rank's input, of scatters its output: a part of what it takes.
"""


def install(patches: Patches) -> None:
    """Wrap every functional collective and every wait for a result."""
    wait = _functional_collectives.wait_tensor
    pairs = calls.wrapped((_functional_collectives,), PARAMETERS, _resolve)
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
