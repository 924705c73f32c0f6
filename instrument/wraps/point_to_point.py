"""Transfers between two ranks, alone or in a batch, and blocks of coalesced operations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from instrument.core import calls, completion, nvtx_ranges, operations, wrapping
from instrument.core.operations import BLOCK, TRANSFER, Operation, Parameters, operation
from instrument.core.patching import Patches
from instrument.core.wrapping import compiler_of_thread, suspend, untraced

_OBJECTS_TO, _OBJECTS_FROM = (Parameters("", way, kind=TRANSFER) for way in ("dst", "src"))
_TO, _FROM = (Parameters("tensor", way, kind=TRANSFER) for way in ("dst", "src"))

PARAMETERS: dict[str, Parameters] = {
    "irecv": _FROM,
    "isend": _TO,
    "recv": _FROM,
    "recv_object_list": _OBJECTS_FROM,
    "send": _TO,
    "send_object_list": _OBJECTS_TO,
}
"""Without a source it is a receive from any rank."""


def _batch(p2p_op_list: Sequence[dist.P2POp]) -> Operation:
    """Describe a batch, whose transfers have labels of their own."""
    return operation(p2p_op_list[0].group, kind=BLOCK)


def install(patches: Patches) -> None:
    """Wrap every transfer, every batch and every block that coalesces."""
    pairs = calls.wrapped((distributed_c10d, dist), PARAMETERS)
    directions = {distributed_c10d.isend, distributed_c10d.irecv}
    both = {function: wrapper for function, wrapper in pairs if function in directions}
    many = distributed_c10d.batch_isend_irecv
    pairs.append((many, calls.around(many, _batch, "batch_isend_irecv", level=calls.BLOCK)))
    manager = distributed_c10d._coalescing_manager  # noqa: SLF001
    pairs.append((manager, _coalescing(manager)))
    _accept_both(patches, both)
    calls.install(patches, pairs)


class _Direction:
    """The attribute `P2POp.op`: the wrapper while it is installed, afterwards the original.

    PyTorch compares it by identity with the current functions of `torch.distributed`.
    """

    def __init__(self, wrappers: Mapping[object, object]) -> None:
        self._wrappers = wrappers
        self._originals = {wrapper: original for original, wrapper in wrappers.items()}

    def __get__(self, operation: Any, _: type | None = None) -> Any:  # noqa: ANN401
        if operation is None:
            return self
        try:
            function = vars(operation)["op"]
        except KeyError:
            raise AttributeError("op") from None
        return self._wrappers.get(function, function)

    def __set__(self, operation: object, function: object) -> None:
        vars(operation)["op"] = self._originals.get(function, function)


def _accept_both(patches: Patches, wrappers: Mapping[Any, Any]) -> None:
    check = distributed_c10d._check_op  # noqa: SLF001

    @functools.wraps(check)
    def check_either(op: Any) -> None:  # noqa: ANN401
        check(wrappers.get(op, op))

    patches.replace(distributed_c10d, "_check_op", check_either)
    patches.replace(dist.P2POp, "op", _Direction(wrappers))


def _coalescing(
    manager: Callable[..., AbstractContextManager[Any]],
) -> Callable[..., AbstractContextManager[Any]]:
    describe = operations.reader(manager, Parameters(kind=BLOCK))

    @untraced
    @functools.wraps(manager)
    def coalescing(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:  # noqa: ANN401
        block = manager(*args, **kwargs)
        if calls.is_silent(calls.BLOCK):
            return block
        compiler = compiler_of_thread()
        labelled = None
        try:
            suspend(None)
            labelled = operations.label("coalesced", describe(*args, **kwargs))
        except Exception as error:
            if not wrapping.is_ours(error):
                raise
            wrapping.complain("coalesced", error)
        finally:
            suspend(compiler)
        return block if labelled is None else _around(block, labelled[0])

    return coalescing


@contextlib.contextmanager
def _around(block: AbstractContextManager[Any], text: str) -> Iterator[Any]:
    """Put a range around a coalescing block; its operations have ranges of their own."""
    outer = calls.thread.level
    opened = nvtx_ranges.message(text)
    is_open = False
    try:
        is_open = True
        nvtx_ranges.push(opened)
        calls.thread.level = calls.BLOCK
        with block as manager:
            try:
                yield manager
            finally:  # the collected operations are sent now, and have their labels already
                calls.thread.level = calls.INSIDE
        completion.remember(manager.works, text)
    finally:
        calls.thread.level = outer
        if is_open:
            nvtx_ranges.pop()
