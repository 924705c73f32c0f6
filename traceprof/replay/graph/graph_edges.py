"""The edges of the graph of a run, in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from msgspec.structs import replace

from traceprof.replay.graph.longest_path import ROOT
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int32, Int64, Mask
    from traceprof.replay.graph.process_graph import EdgeKind


class EdgesOfKind(Protocol):
    """The n edges of one kind."""

    @property
    def kind(self) -> EdgeKind:
        """What holds their targets back."""

    @property
    def source(self) -> Int64:
        """The nodes where they begin, int64[n]."""

    @property
    def target(self) -> Int64:
        """The nodes that they lead to, int64[n]."""


class GraphEdges(Record, frozen=True):
    """The e edges of a graph, in the order of their weights.

    Attributes:
        kind: uint8[e], what holds their targets back: `EdgeKind`.
        source: int32[e], nodes.
        target: int32[e], nodes.
    """

    kind: npt.NDArray[np.uint8]
    source: Int32
    target: Int32

    def __len__(self) -> int:
        return len(self.kind)

    @staticmethod
    def of(kinds: Sequence[EdgesOfKind]) -> GraphEdges:
        """Return the edges of several kinds, one kind after the other."""
        numbers = np.array([one.kind for one in kinds], np.uint8)
        return GraphEdges(
            np.repeat(numbers, [len(one.source) for one in kinds]),
            _joined([one.source for one in kinds], np.int32),
            _joined([one.target for one in kinds], np.int32),
        )

    @staticmethod
    def joined(parts: Sequence[GraphEdges]) -> GraphEdges:
        """Put the edges of one part of a graph behind those of another."""
        return GraphEdges(
            _joined([part.kind for part in parts], np.uint8),
            _joined([part.source for part in parts], np.int32),
            _joined([part.target for part in parts], np.int32),
        )

    def moved(self, by: int) -> GraphEdges:
        """Return them with `by` other nodes before their own; the root stays where it is."""
        source = np.where(self.source == ROOT, ROOT, self.source + by).astype(np.int32)
        return replace(self, source=source, target=(self.target + by).astype(np.int32))

    def from_root(self, chosen: Mask) -> GraphEdges:
        """Return them, some coming from the root: bool[e]."""
        return replace(self, source=np.where(chosen, ROOT, self.source).astype(np.int32))


def _joined(parts: Sequence[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *parts], dtype=kind, casting="same_kind")
