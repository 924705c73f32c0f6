"""Multiplications, additions and bytes of PyTorch's operators, by their shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import msgspec

Shapes = Sequence[Sequence[int]]
Values = Sequence[str]


@lru_cache(maxsize=4096)  # of a training step, which repeats
def flops_of(name: str, sizes: bytes, values: bytes) -> int | None:
    """FLOPs of an operator, such as `aten::mm`; None if its shapes do not say them.

    `sizes`: JSON of the profiler's `Input Dims`. `values`: JSON of its `Concrete Inputs`.
    """
    formula = FLOP_FORMULAS.get(name)
    if formula is None:
        return None
    try:
        number = formula(msgspec.json.decode(sizes) or (), msgspec.json.decode(values) or ())
    except (ValueError, TypeError, IndexError, KeyError):  # a shape that is not there, or is none
        return None
    return number if 0 <= number < _MAX_FLOPS else None


_MAX_FLOPS = 1 << 62


def _product(first: int) -> Callable[[Shapes, Values], int]:
    """Formula of a product of matrices, perhaps many; inputs from the `first`."""

    def flops(shapes: Shapes, values: Values) -> int:
        del values
        (*many, rows, inner), (*_, other, columns) = shapes[first], shapes[first + 1]
        _check(inner == other)
        return 2 * prod(many) * rows * inner * columns

    return flops


def _convolution(shapes: Shapes, values: Values) -> int:
    """Inputs: input, weight, bias, stride, padding, dilation, transposed, and others."""
    (batch, _, *size), weight = shapes[0], shapes[1]
    if values[6] == "True":
        return 2 * batch * prod(size) * prod(weight)
    window = weight[2:]
    stride, padding, dilation = (_numbers(values[place]) for place in (3, 4, 5))
    out = [
        (length + 2 * pad - spread * (width - 1) - 1) // step + 1
        for length, pad, spread, width, step in zip(
            size, padding, dilation, window, stride, strict=True
        )
    ]
    return 2 * batch * prod(out) * prod(weight)


def _convolution_backward(shapes: Shapes, values: Values) -> int:
    """Inputs: output gradient, input, weight, …, transposed, …, which gradients are wanted."""
    (batch, _, *out), (_, _, *size), weight = shapes[:3]
    once = 2 * batch * prod(size if values[7] == "True" else out) * prod(weight)
    of_input, of_weight, _ = (word.strip() == "True" for word in values[10].strip("[]").split(","))
    return once * (of_input + of_weight)


def _attention(first: int, num_scores: int, num_outputs: int) -> Callable[[Shapes, Values], int]:
    """Formula of attention; inputs from the `first`: query, key, value.

    `num_scores`, `num_outputs`: products as large as query times key, and as scores times value.
    """

    def flops(shapes: Shapes, values: Values) -> int:
        del values
        (batch, heads, rows, width), key, value = shapes[first : first + 3]
        _check(len(key) == len(value) == 4 and key[-1] == width)
        return 2 * batch * heads * rows * key[-2] * (num_scores * width + num_outputs * value[-1])

    return flops


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.strip("[]").split(",")]


def _check(is_usable: bool) -> None:
    if not is_usable:
        raise ValueError("shapes that do not fit")


_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
FLOP_FORMULAS: dict[str, Callable[[Shapes, Values], int]] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::_int_mm": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    **{f"aten::{name}": _attention(0, 1, 1) for name in _ATTENTIONS},
    # The output's gradient comes first; the scores are computed again.
    **{f"aten::{name}_backward": _attention(1, 3, 2) for name in _ATTENTIONS},
}
"""By operator."""


class Moved(NamedTuple):
    """Bytes that an operator moves."""

    all: int  # read and written
    read: int  # the part of them that is read


class _Tensor(NamedTuple):
    shape: tuple[int, ...]  # its sizes
    item: int  # bytes of one element
    is_floating: bool  # whether elements are floating-point numbers
    bytes: int  # that are read


@lru_cache(maxsize=4096)  # of a training step, which repeats
def bytes_of(name: str, sizes: bytes, types: bytes, strides: bytes) -> Moved | None:
    """Least number of bytes that an operator moves; None if its shapes do not say them.

    `sizes`, `types` and `strides`: JSON of the profiler's `Input Dims`, `Input type` and `Input
    Strides`, `null` where these are not recorded.
    """
    formula = BYTE_FORMULAS.get(name)
    if formula is None:
        return None
    try:
        tensors = _tensors(
            msgspec.json.decode(sizes),
            msgspec.json.decode(types),
            msgspec.json.decode(strides) or (),
        )
        shaped = [place for place, tensor in enumerate(tensors) if tensor.shape]
        if len(shaped) > (num_read := _NUM_READ.get(name, len(shaped))):
            tensors = tensors[: shaped[num_read]]
        number = formula(tensors)
        read = tensors[1].bytes if formula is _copied else _read(tensors)
    except (ValueError, TypeError, IndexError, KeyError):  # a shape that is not there, or is none
        return None
    return Moved(number, read) if 0 < number < _MAX_BYTES else None


_MAX_BYTES = 1 << 53
# By bytes of a number: types with a point, and others, as PyTorch and as C++ call them.
_FLOATING = {
    1: ("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu"),
    2: ("Half", "BFloat16"),
    4: ("Float", "float", "ComplexHalf", "complex<c10::Half>"),
    8: ("Double", "double", "ComplexFloat", "complex<float>"),
    16: ("ComplexDouble", "complex<double>"),
}
_WHOLE = {
    1: ("Byte", "Char", "Bool", "QInt8", "QUInt8", "unsigned char", "signed char", "bool"),
    2: ("Short", "UInt16", "short", "short int", "unsigned short"),
    4: ("Int", "QInt32", "UInt32", "int", "unsigned int"),
    8: ("Long", "UInt64", "long", "long int", "unsigned long"),
}
_FLOATING_BYTES = {
    f"{prefix}{name}": size
    for size, names in _FLOATING.items()
    for name in names
    for prefix in ("", "c10::")
}
ITEM_BYTES = _FLOATING_BYTES | {name: size for size, names in _WHOLE.items() for name in names}
"""Bytes of a number, by the name of its type."""
_NO_TENSORS = frozenset({"", "Scalar", "ScalarList"})


def _tensors(
    sizes: Sequence[Sequence[int]], types: Sequence[str], strides: Sequence[Sequence[int]]
) -> list[_Tensor]:
    tensors = []
    for place, (shape, kind) in enumerate(zip(sizes, types, strict=True)):
        if kind in _NO_TENSORS:
            continue
        item = ITEM_BYTES[kind]
        steps = strides[place] if strides else [1] * len(shape)
        num = prod(size for size, step in zip(shape, steps, strict=True) if step)
        if min(shape, default=0) < 0:
            raise ValueError("a size that is none")
        tensors.append(_Tensor(tuple(shape), item, kind in _FLOATING_BYTES, num * item))
    return tensors


def _read(tensors: Sequence[_Tensor]) -> int:
    return sum(tensor.bytes for tensor in tensors)


def _broadcast(tensors: Sequence[_Tensor]) -> int:
    """Inputs, and an output of all their sizes in the widest of their types."""
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    num: int = prod(max(sizes) if min(sizes) else 0 for sizes in zip(*padded, strict=True))
    wide = [tensor for tensor in tensors if tensor.shape] or tensors
    floating = [tensor.item for tensor in wide if tensor.is_floating]
    return _read(tensors) + num * max(floating or [tensor.item for tensor in wide])


def _like_first(tensors: Sequence[_Tensor]) -> int:
    """Inputs, and an output like the first."""
    return _read(tensors) + prod(tensors[0].shape) * tensors[0].item


def _copied(tensors: Sequence[_Tensor]) -> int:
    """The second is read, and written into the first."""
    first, second = tensors[:2]
    return second.bytes + prod(first.shape) * first.item


# By the number of tensors that an operator reads: one more is where its `out=` form writes.
_ELEMENTWISE = {
    1: (
        *("neg", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs"),
        *("sin", "cos", "erf", "reciprocal", "clamp", "clamp_min"),
        *("leaky_relu", "hardtanh", "softplus"),
    ),
    2: (
        *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "masked_fill", "lerp"),
        *("threshold_backward", "gelu_backward", "silu_backward"),
        *("sigmoid_backward", "tanh_backward", "leaky_relu_backward"),
    ),
    3: ("addcmul", "addcdiv"),
}
_NUM_READ = {f"aten::{name}": num for num, names in _ELEMENTWISE.items() for name in names}
_LIKE_FIRST = (
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
)
BYTE_FORMULAS: dict[str, Callable[[Sequence[_Tensor]], int]] = {
    **dict.fromkeys(_NUM_READ, _broadcast),
    **{f"{name}_": _like_first for name in _NUM_READ},
    **{f"aten::{name}": _like_first for name in _LIKE_FIRST},
    **{f"aten::{name}": _read for name in ("sum", "mean", "amax", "amin")},
    "aten::copy_": _copied,
}
"""By operator."""
