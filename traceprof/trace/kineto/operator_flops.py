"""Multiplications and additions of operators, by the shapes that torch.profiler records.

The formulas are those of PyTorch's own counter of FLOPs: a product of matrices of m x k and k x n
takes 2mkn. Attention counts as if no part of it were masked. Unlike there, a gradient of a
convolution's weight with groups counts what is multiplied.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Shapes = Sequence[Sequence[int]]
    Values = Sequence[str]


@lru_cache(maxsize=4096)  # of a training step, which repeats
def flops_of(name: str, sizes: bytes, values: bytes) -> int | None:
    """Return the FLOPs of an operator; None if its shapes do not say them.

    Args:
        name: such as `aten::mm`.
        sizes: JSON of the profiler's `Input Dims`.
        values: JSON of its `Concrete Inputs`.
    """
    formula = FORMULAS.get(name)
    if formula is None:
        return None
    try:
        number = formula(msgspec.json.decode(sizes) or (), msgspec.json.decode(values) or ())
    except (ValueError, TypeError, IndexError, KeyError):  # a shape that is not there, or is none
        return None
    return number if 0 <= number < _LIMIT else None


_LIMIT = 1 << 62


def _product(first: int) -> Callable[[Shapes, Values], int]:
    """Return the formula of a product of matrices, perhaps many; inputs from the `first`."""

    def flops(shapes: Shapes, values: Values) -> int:
        del values
        (*many, rows, inner), (*_, other, columns) = shapes[first], shapes[first + 1]
        _check(inner == other)
        return 2 * prod(many) * rows * inner * columns

    return flops


def _convolution(shapes: Shapes, values: Values) -> int:
    """Of input, weight, bias, stride, padding, dilation, transposed, output padding, groups."""
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
    """Of the output's gradient, input, weight, …, transposed, …, which gradients are asked for."""
    (batch, _, *out), (_, _, *size), weight = shapes[:3]
    once = 2 * batch * prod(size if values[7] == "True" else out) * prod(weight)
    of_input, of_weight, _ = (word.strip() == "True" for word in values[10].strip("[]").split(","))
    return once * (of_input + of_weight)


def _attention(shapes: Shapes, _: Values) -> int:
    """Of query, key, value."""
    scores, outputs = _attention_products(*shapes[:3])
    return scores + outputs


def _attention_backward(shapes: Shapes, _: Values) -> int:
    """Of the output's gradient, query, key, value: the scores are computed again."""
    scores, outputs = _attention_products(*shapes[1:4])
    return 3 * scores + 2 * outputs


def _attention_products(
    query: Sequence[int], key: Sequence[int], value: Sequence[int]
) -> tuple[int, int]:
    """Return the FLOPs of query times key, and of the scores times value."""
    batch, heads, rows, width = query
    _check(len(key) == len(value) == len(query) and key[-1] == width)
    return (
        2 * batch * heads * rows * key[-2] * width,
        2 * batch * heads * rows * key[-2] * value[-1],
    )


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.strip("[]").split(",")]


def _check(is_usable: bool) -> None:
    if not is_usable:
        raise ValueError("shapes that do not fit")


_ATTENTIONS = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip
FORMULAS: dict[str, Callable[[Shapes, Values], int]] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::_int_mm": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    **{f"aten::{name}": _attention for name in _ATTENTIONS},
    **{f"aten::{name}_backward": _attention_backward for name in _ATTENTIONS},
}
"""By operator."""
