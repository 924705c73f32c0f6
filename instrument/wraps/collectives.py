"""Collectives of `torch.distributed`: functions by which a whole group moves tensors or objects."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import distributed_c10d

from instrument.core import calls
from instrument.core.operations import Parameters
from instrument.core.patching import Patches

_ALL_GATHER = Parameters("input_tensor")
_GATHER = Parameters("tensor", "dst", root=0)
_REDUCE_SCATTER = Parameters("output")

PARAMETERS: dict[str, Parameters] = {
    "all_gather": Parameters("tensor"),
    "all_gather_coalesced": Parameters("input_tensor_list"),
    "all_gather_into_tensor": _ALL_GATHER,
    "all_gather_object": Parameters(),
    "all_gather_single": _ALL_GATHER,
    "all_reduce": Parameters("tensor"),
    "all_reduce_coalesced": Parameters("tensors"),
    "all_to_all": Parameters("input_tensor_list"),
    "all_to_all_single": Parameters("input"),
    "barrier": Parameters(),
    "broadcast": Parameters("tensor", "src"),
    "broadcast_object_list": Parameters("", "src", root=0),
    "gather": _GATHER,
    "gather_into_tensor": _GATHER,
    "gather_object": Parameters("", "dst", root=0),
    "gather_single": _GATHER,
    "monitored_barrier": Parameters(),
    "reduce": Parameters("tensor", "dst"),
    "reduce_scatter": _REDUCE_SCATTER,
    "reduce_scatter_single": _REDUCE_SCATTER,
    "reduce_scatter_tensor": _REDUCE_SCATTER,
    "scatter": Parameters("tensor", "src", root=0),
    "scatter_object_list": Parameters("", "src", root=0),
    "_all_gather_base": _ALL_GATHER,
    # Of DDP: the first rank's parameters and buffers, and a comparison of the parameters' shapes.
    "_broadcast_coalesced": Parameters(
        "tensors",
        "src",
        root=0,
        is_of_group=True,
        names=("process_group", "tensors", "buffer_size", "src"),
    ),
    "_reduce_scatter_base": _REDUCE_SCATTER,
    "_verify_params_across_processes": Parameters(names=("process_group",)),
}
"""How to read the arguments of each function, for every version of PyTorch from 2.4 on.

Of gathers the message is one rank's input, of scatters its output.
"""


def install(patches: Patches) -> None:
    """Wrap every collective, under all names in all modules."""
    calls.install(patches, calls.wrapped((distributed_c10d, dist), PARAMETERS))
