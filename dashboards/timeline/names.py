"""Names of a timeline's events as numbers, in full and in short, and the search among them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from traceprof.kernel_names import function_name
from traceprof.trace.model.texts import Texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64

_LABEL_CHARACTERS = 100


class NameTable:
    """Names by number; there can be a million.

    Attributes:
        names: in full, by number.
    """

    def __init__(self, names: Sequence[str], num_kernels: int = 0) -> None:
        """Take names, of which so many, from the first on, are those of kernels."""
        self.names = names
        self._num_kernels = num_kernels
        self._folded: Texts | None = None

    def __len__(self) -> int:
        return len(self.names)

    def label(self, number: int) -> str:
        """Return the short form of a name, as drawn in an event: of a kernel, its function."""
        return _label(self.names[number], is_kernel=number < self._num_kernels)

    def matching(self, text: str) -> Int64:
        """Return the numbers of the names that contain a text, in full or in short, ascending.

        Args:
            text: not empty; upper and lower case are equal.
        """
        if self._folded is None:
            self._folded = self._in_one_case()
        letters, wanted = np.frombuffer(self._folded.joined, np.uint8), _folded(text)
        # Where the text begins, and of these places ever fewer at which it goes on.
        at = np.flatnonzero(letters[: max(len(letters) - len(wanted) + 1, 0)] == wanted[0])
        for index, letter in enumerate(wanted[1:], 1):
            at = at[letters[at + index] == letter]
        ends = self._folded.ends
        name = np.searchsorted(ends, at, side="right")
        is_within = at + len(wanted) <= ends[np.minimum(name, len(ends) - 1)]
        return np.unique(name[is_within])

    def _in_one_case(self) -> Texts:
        """Return the names, of kernels also in short, without a difference of case."""
        if isinstance(self.names, Texts) and self.names.joined.isascii():
            return Texts.of(_folded(self.names.joined.decode("ascii")), self.names.ends)
        return Texts(
            _folded(f"{name} {self.label(number)}" if number < self._num_kernels else name)
            for number, name in enumerate(self.names)
        )


def _folded(text: str) -> bytes:
    return text.replace("\n", " ").lower().encode("utf-8", "replace")


@lru_cache(maxsize=4096)
def _label(name: str, *, is_kernel: bool) -> str:
    shown = function_name(name) if is_kernel else name
    if is_kernel:
        computed = _computed(name, shown)
        shown = f"{computed} · {shown.removeprefix('at::native::')}" if computed else shown
    return shown if len(shown) <= _LABEL_CHARACTERS else f"{shown[: _LABEL_CHARACTERS - 1]}…"


# What PyTorch's elementwise and reducing kernels compute is a template's argument: a functor, the
# operation of a reduction, or the function that a lambda is written in.
_ARGUMENTS = re.compile(
    r"\b(\w*[Ff]unctor\w*|[A-Z]\w*Ops)\b|\b(\w+?)(?:_kernel_cuda|_kernel_impl|_kernel)\("
)
_WRAPPERS = ("AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor")  # of what they compute
_GENERIC = re.compile(r"\bat::native::.*(?:elementwise_kernel|reduce_kernel)\b")


def _computed(name: str, function: str) -> str:
    """Return what a generic kernel of PyTorch computes; empty if its name does not show it."""
    if _GENERIC.search(function) is None:
        return ""
    arguments = name.partition("<")[2]
    computed = [match[1] or match[2] for match in _ARGUMENTS.finditer(arguments)]
    computed = [word for word in computed if word not in _WRAPPERS and word != "gpu"]
    return re.sub(r"^CUDAFunctor(?:OnSelf|OnOther)?_", "", computed[0]) if computed else ""
