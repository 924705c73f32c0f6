"""Calls of PyTorch that start communication and return at once, in words for advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.communication.messages import BETWEEN_TWO
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.trace.model.communication_calls import BARRIER

if TYPE_CHECKING:
    from collections.abc import Iterable


def asynchronous_calls(operations: Iterable[str]) -> str:
    """Return the calls for operations that ran, given by NCCL's names: of both sorts if unknown."""
    names = {*operations} - {BARRIER} or {UNKNOWN_OPERATION}
    texts = []
    if names.difference(BETWEEN_TWO):
        texts.append("collectives with async_op=True")
    if names.intersection((*BETWEEN_TWO, UNKNOWN_OPERATION)):
        texts.append("sends and receives with isend and irecv")
    return ", ".join(texts)
