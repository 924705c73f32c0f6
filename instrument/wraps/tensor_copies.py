"""Copies of tensors between host and devices, and reads of their values on the host.

`to`, `copy_`, `cuda`, `cpu`, `pin_memory`, and, where the tensor is on a device, `item`, `tolist`,
`float(t)` and the like, and `nonzero`: each of these waits for the device.

Instances have the wrapper, while the class itself still has PyTorch's own method: code that
compares methods by identity, keeps them in tables or gets them in `__torch_function__` sees no
difference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from instrument.core import nvtx_ranges, wrapping
from instrument.core.patching import Patches
from instrument.core.wrapping import (
    compiler_of_thread,
    functions_are_overridden,
    suspend,
    untraced,
    without_overrides,
)
from traceprof import labels

Method = Callable[..., Any]

_PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""Other classes define copies themselves, and run their own code for attributes."""


def install(patches: Patches) -> None:
    """Wrap the copies of plain tensors."""
    for name, label in LABELS.items():
        original = getattr(Tensor, name)
        patches.replace(
            Tensor,
            name,
            _OnInstances(original, _named(original, label, reads=name in {"cpu", *READING})),
        )


class _OnInstances:
    """A method that is wrapped on instances, and the original on the class."""

    __slots__ = ("_original", "_wrapper")

    def __init__(self, original: Method, wrapper: Method) -> None:
        self._original = original
        self._wrapper = wrapper

    def __get__(self, instance: Tensor | None, owner: type | None = None) -> Method:
        return self._original if instance is None else MethodType(self._wrapper, instance)


def _named(original: Method, label: Callable[..., str | None], *, reads: bool) -> Method:
    """Return the method with a range around calls that have a label.

    `reads`: calls have none where the tensor is on the host.
    """
    dtype, device = torch.dtype, torch.device

    @untraced
    @functools.wraps(original)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # Nearly all calls move nothing: few checks, in the cheapest order.
        target = args[0] if args else kwargs.get("device")
        kind = type(target)
        if kind is dtype or type(self) not in _PLAIN or is_compiling():
            return original(self, *args, **kwargs)
        if not functions_are_overridden():
            if reads or (kind is str and target == "cpu"):
                if self.is_cpu:
                    return original(self, *args, **kwargs)
            elif kind is device and target == self.device:
                return original(self, *args, **kwargs)
        is_open = False
        compiler = compiler_of_thread()
        try:
            suspend(None)
            text = _text(label, self, args, kwargs)
            if text is not None:
                opened = nvtx_ranges.message(text)
                is_open = True
                nvtx_ranges.push(opened)
            suspend(compiler)
            return original(self, *args, **kwargs)
        finally:
            try:
                if is_open:
                    nvtx_ranges.pop()
            finally:
                suspend(compiler)

    return method


def _text(
    label: Callable[..., str | None],
    tensor: Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> str | None:
    try:
        with without_overrides():
            return label(tensor, *args, **kwargs)
    except Exception as error:
        if not wrapping.is_ours(error):
            raise
        if not isinstance(error, TypeError):  # of wrong arguments, for which the method raises
            wrapping.complain("a tensor's copy", error)
        return None


def _to(tensor: Tensor, /, *args: Any, **kwargs: Any) -> str | None:  # noqa: ANN401
    target = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
    kind = type(target)
    if target is None:
        return None
    rest = list(args[1:])
    dtype: torch.dtype | None
    if isinstance(target, Tensor):
        device, dtype = target.device, target.dtype
    else:
        device = target if kind is torch.device else torch.device(target)
        dtype = rest.pop(0) if rest else kwargs.get("dtype")
    non_blocking = rest[0] if rest else kwargs.get("non_blocking", False)
    return move("to", tensor, device, dtype, non_blocking)


def _cuda(
    tensor: Tensor,
    /,
    device: torch.device | str | int | None = None,
    non_blocking: bool = False,
    **_: object,
) -> str | None:
    index = torch.device("cuda", device) if isinstance(device, int) else device
    return move("cuda", tensor, torch.device(index or "cuda"), None, non_blocking)


def _cpu(tensor: Tensor, /, **_: object) -> str | None:
    return None if tensor.is_cpu else move("cpu", tensor, torch.device("cpu"), None, False)


def _copy(tensor: Tensor, /, src: Tensor, non_blocking: bool = False) -> str | None:
    if type(src) not in _PLAIN or src.device == tensor.device:
        return None
    return move("copy_", src, tensor.device, tensor.dtype, non_blocking, into=tensor)


def _pin(tensor: Tensor, /, *_: object, **__: object) -> str | None:
    """Label a copy into page-locked memory; a tensor that is there already is not copied."""
    if not tensor.is_cpu or _is_pinned(tensor):
        return None
    return str(labels.Label("pin_memory", _bytes(tensor, tensor.dtype)))


def _reading(name: str, *, reads_all: bool = True) -> Callable[..., str | None]:
    """Label a method that reads a tensor's elements, or their number, on the host.

    The host waits for them. The use of page-locked memory depends on the version of PyTorch.
    """

    def label(tensor: Tensor, /, *_: object, **__: object) -> str | None:
        if tensor.is_cpu or (way := direction(tensor.device, _HOST)) is None:
            return None
        facts = _bytes(tensor, tensor.dtype) if reads_all else {}
        return str(labels.Label(f"{name} {way}", facts | {"non_blocking": "0"}))

    return label


_HOST = torch.device("cpu")

READING: Mapping[str, Callable[..., str | None]] = {
    "item": _reading("item"),
    "tolist": _reading("tolist"),
    "nonzero": _reading("nonzero", reads_all=False),
    "__bool__": _reading("bool"),
    "__complex__": _reading("complex"),
    "__float__": _reading("float"),
    "__index__": _reading("index"),
    "__int__": _reading("int"),
}
"""Methods that bring values of a tensor to the host, which waits for the device."""

LABELS: Mapping[str, Callable[..., str | None]] = {
    "to": _to,
    "cuda": _cuda,
    "cpu": _cpu,
    "copy_": _copy,
    "pin_memory": _pin,
    **READING,
}
"""Functions that label a call of each method from its arguments; None if nothing moves."""


def move(
    operation: str,
    source: Tensor,
    device: torch.device,
    dtype: torch.dtype | None,
    non_blocking: bool,
    into: Tensor | None = None,
) -> str | None:
    """Return the label of a copy to a device, with the transferred bytes; None if it stays.

    `dtype` is the copy's, None for the source's; `into` the target tensor, None for a new one. A
    copy that also converts does so on the host if it blocks and on the device otherwise, which
    decides the type of the transferred data (aten/src/ATen/native/cuda/Copy.cu).
    """
    way = direction(source.device, device)
    if way is None:
        return None
    from_host = source.device.type == "cpu"
    converts_first = from_host != bool(non_blocking)
    crossing = (dtype or source.dtype) if converts_first else source.dtype
    facts = _bytes(source if into is None else into, crossing)
    if from_host:
        pinned = _is_pinned(source)
    elif into is not None:
        pinned = _is_pinned(into)
    else:  # PyTorch allocates page-locked memory for copies without blocking
        pinned = bool(non_blocking)
    if pinned is not None and way in {"h2d", "d2h"}:
        facts["pinned"] = str(int(pinned))
    facts["non_blocking"] = str(int(bool(non_blocking)))
    return str(labels.Label(f"{operation} {way}", facts))


def direction(source: torch.device, target: torch.device) -> str | None:
    """Return `h2d`, `d2h`, `p2p` between devices of a type, `d2d` otherwise; None if it stays."""
    from_host, to_host = (device.type == "cpu" for device in (source, target))
    if (from_host and to_host) or "meta" in {source.type, target.type}:
        return None
    if from_host or to_host:
        return "h2d" if from_host else "d2h"
    if source.type != target.type:
        return "d2d"
    index = _current(target.type) if target.index is None else target.index  # type: ignore[redundant-expr]
    return None if index == source.index else "p2p"


def _current(kind: str) -> int:
    current: int = getattr(torch, kind).current_device()
    return current


def _bytes(tensor: Tensor, dtype: torch.dtype) -> dict[str, str]:
    """Return the size of its elements as a fact; none for a sparse one, whose parts are copied."""
    dense = tensor.layout is torch.strided
    return {"bytes": str(tensor.numel() * dtype.itemsize)} if dense else {}


def _is_pinned(tensor: Tensor) -> bool | None:
    """Return whether it lies in page-locked memory; None if the query would be noticed.

    That is the case under a mode of the user, and during the capture of a CUDA graph.
    """
    if torch._C._len_torch_dispatch_stack():  # noqa: SLF001
        return None
    is_initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if is_initialized and torch.cuda.is_current_stream_capturing():
        return None
    return tensor.is_pinned()
