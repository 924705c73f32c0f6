"""Named ranges on the host: some of them, all of a process, and those of `instrument`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.patterns import lazy
from traceprof.structs import Record
from traceprof.trace.model.call_labels import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64
    from traceprof.labels import Label

RUNNING_NUMBER = lazy(r" seq=(\d+)(?![^ \0])")
"""The number of a call in its process group, in a label."""

# All calls and steps differ in their numbers; without them there are few kinds.
_STEP = lazy(rf"(?<![^\0]){labels.STEP} \d+(?![^\0])")
BETWEEN_TEXTS = "\0"
"""A character that no text holds: it ends C strings, as NVTX has them."""


class NamedRanges(Record, frozen=True):
    """NVTX ranges of one process, ordered by start, then end.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 if the range was still open at the capture's end.
        names: n names.
        thread: int64[n], the thread that opened it.
        end_thread: int64[n], the thread that closed it, or would have closed it.
    """

    start_ns: Int64
    end_ns: Int64
    names: Sequence[str]
    thread: Int64
    end_thread: Int64


class RangeTable(Record, frozen=True):
    """All NVTX ranges of one process, ordered by start, longer ones first.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 if the range was still open at the capture's end.
        name: int64[n], indices into `names`.
        thread: int64[n], the thread that opened it.
        nests: bool[n], whether it was pushed and popped, so that it nests with others of its
            thread; if not, it was started and ended, perhaps by another thread.
        names: the names of the whole report.
    """

    start_ns: Int64
    end_ns: Int64
    name: Int64
    thread: Int64
    nests: npt.NDArray[np.bool_]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.start_ns)


class LabelRanges(Record, frozen=True):
    """The NVTX ranges that `instrument` made in one process, ordered by thread, start, nesting.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 if the range was still open at the capture's end.
        thread: int64[n], the thread that opened it.
        nests: bool[n], whether it was pushed and popped, so that it nests with others of its
            thread; if not, it was started and ended, perhaps by another thread.
        text: int64[n], indices into `texts`.
        texts: the distinct texts.
        kind: int64[n], indices into `kinds`.
        kinds: the distinct labels, without sequence numbers (`seq`), steps with the number 0.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    nests: npt.NDArray[np.bool_]
    text: Int64
    texts: Sequence[str]
    kind: Int64
    kinds: Sequence[Label]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def sequence(self) -> Int64:
        """The sequence number of each of `texts`, -1 for none: int64[texts]."""
        matches = map(RUNNING_NUMBER.search, self.texts)
        numbers = (number_of(match and match[1]) for match in matches)
        return np.fromiter(numbers, np.int64, len(self.texts))


def name_until(name: str, until: str) -> str:
    """Return a name up to where `until` begins; all of it where `until` is empty."""
    return name.partition(until)[0] if until else name


def labelled(
    start_ns: Int64,
    end_ns: Int64,
    thread: Int64,
    nests: npt.NDArray[np.bool_],
    names: Sequence[str],
) -> LabelRanges:
    """Return ranges of `instrument` with the contents of their texts.

    Args:
        start_ns: int64[n].
        end_ns: int64[n].
        thread: int64[n]; they are ordered by thread, start, nesting.
        nests: bool[n].
        names: n texts.
    """
    text, texts = _numbered(names)
    without = RUNNING_NUMBER.sub("", BETWEEN_TEXTS.join(texts))
    kind_of_text, kinds = _numbered(_STEP.sub(labels.step(0), without).split(BETWEEN_TEXTS))
    return LabelRanges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        nests=nests,
        text=text,
        texts=texts,
        kind=kind_of_text[text],
        kinds=[labels.parse(kind) for kind in kinds],
    )


def _numbered(texts: Sequence[str]) -> tuple[Int64, list[str]]:
    """Return the number of each text among the distinct ones, and these."""
    numbers: dict[str, int] = {}
    indices = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return indices, list(numbers)
