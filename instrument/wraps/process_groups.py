"""Methods of process groups, for calls that bypass the functions.

`group.allreduce([tensor])`, and functions of `torch.distributed` that were stored before they were
wrapped (in a `functools.partial`, a list, a default argument), end in these methods. So do the
wrapped functions themselves, whose calls are inside a range already and open no other one. Waits
for asynchronous operations are methods, too, of the `Work` that these return.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from instrument.core import calls
from instrument.core.calls import Describe
from instrument.core.operations import COLLECTIVE, TRANSFER, Operation, operation
from instrument.core.patching import Patches


def install(patches: Patches) -> None:
    """Wrap the methods that carry out operations, and those that wait for one."""
    calls.switch_on(patches)
    for method, (function, describe) in METHODS.items():
        if method in vars(dist.ProcessGroup):
            wrapper = calls.around_method(dist.ProcessGroup, method, describe, function)
            patches.replace(dist.ProcessGroup, method, wrapper)
    for method in WAITS:
        patches.replace(dist.Work, method, calls.around_waiting_method(dist.Work, method))


# Methods take one tensor or a list, options or a root, by position or by keyword: their arguments
# are read by place, or by the beginning of the keyword.


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, *names: str) -> Any:  # noqa: ANN401
    if len(args) > place:
        return args[place]
    return next((value for name, value in kwargs.items() if name.startswith(names)), None)


def _is_async(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the options request an asynchronous operation.

    Options have this flag since 2.8, and come last.
    """
    options = kwargs.get("opts", args[-1] if args else None)
    return getattr(options, "asyncOp", True)


def _reader(
    place: int | None = None,
    *names: str,
    direction: str = "",
    root: int | None = None,
    kind: int = COLLECTIVE,
) -> Describe:
    """Return what describes calls of a method.

    The message is at `place`, or given by a name that begins with one of `names`; the root or the
    other rank is at `root`.
    """

    def describe(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Operation:  # noqa: ANN401
        if place is None:
            return operation(group, is_async=_is_async(args, kwargs))
        # The common case, written out: further calls would double the cost.
        if len(args) > place and not kwargs and not direction and type(args[place]) is list:
            tensors, options = args[place], args[-1]
            if tensors and type(tensors[0]) is Tensor:
                is_async = getattr(options, "asyncOp", True)
                return group, tensors, "", None, None, COLLECTIVE, False, is_async
        message, rank = _argument(args, kwargs, place, *names), None
        tensors = (message,) if isinstance(message, Tensor) else message
        if root is not None:
            given = _argument(args, kwargs, root, "root", "opts", f"{direction}Rank")
            rank = getattr(given, "rootRank", given) or 0
        is_async = kind == COLLECTIVE and _is_async(args, kwargs)
        return operation(group, tensors, direction, None, rank, kind=kind, is_async=is_async)

    return describe


_INPUT = _reader(1, "input")
_OUTPUT = _reader(0, "output")
_TENSORS = _reader(0, "tensor")
_GATHER = _reader(1, "input", direction="dst", root=2)

METHODS: Mapping[str, tuple[str, Describe]] = {
    "_allgather_base": ("all_gather_into_tensor", _INPUT),
    "_reduce_scatter_base": ("reduce_scatter_tensor", _OUTPUT),
    "all_gather_single": ("all_gather_single", _INPUT),
    "all_gather_single_coalesced": ("all_gather_single_coalesced", _INPUT),
    "all_to_all_single": ("all_to_all_single", _INPUT),
    "allgather": ("all_gather", _INPUT),
    "allgather_coalesced": ("all_gather_coalesced", _INPUT),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", _INPUT),
    "allreduce": ("all_reduce", _TENSORS),
    "allreduce_coalesced": ("all_reduce_coalesced", _TENSORS),
    "alltoall": ("all_to_all", _INPUT),
    "alltoall_base": ("all_to_all_single", _INPUT),
    "barrier": ("barrier", _reader()),
    "broadcast": ("broadcast", _reader(0, "tensor", direction="src", root=1)),
    "gather": ("gather", _GATHER),
    "gather_single": ("gather_single", _GATHER),
    "monitored_barrier": ("monitored_barrier", _reader()),
    "recv": ("irecv", _reader(0, "tensors", direction="src", root=1, kind=TRANSFER)),
    "recv_anysource": ("irecv", _reader(0, "tensors", direction="src", kind=TRANSFER)),
    "reduce": ("reduce", _reader(0, "tensor", direction="dst", root=1)),
    "reduce_scatter": ("reduce_scatter", _OUTPUT),
    "reduce_scatter_single": ("reduce_scatter_single", _OUTPUT),
    "reduce_scatter_single_coalesced": ("reduce_scatter_single_coalesced", _OUTPUT),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", _OUTPUT),
    "scatter": ("scatter", _reader(0, "output", direction="src", root=2)),
    "send": ("isend", _reader(0, "tensors", direction="dst", root=1, kind=TRANSFER)),
}
"""Each method's name among PyTorch's functions, and how to read its arguments."""
WAITS = ("wait", "synchronize")
"""Methods of `Work`."""
