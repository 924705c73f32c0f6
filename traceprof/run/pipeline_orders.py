"""Orders in which pipeline stages compute their micro-batches: GPipe, 1F1B, interleaved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable


class Pass(Record, frozen=True):
    """The forward or the backward of one micro-batch through a part of the model."""

    is_forward: bool  # false for backward
    micro_batch: int  # its number
    chunk: int = 0  # index of the stage's part of the model; 0 if it has only one


def gpipe(stage: int, num_stages: int, num_micro_batches: int) -> list[Pass]:
    """Return all forward passes, then all backward passes, the last micro-batch first."""
    del stage, num_stages  # all stages do the same
    numbers = range(num_micro_batches)
    return [
        *(Pass(is_forward=True, micro_batch=number) for number in numbers),
        *(Pass(is_forward=False, micro_batch=number) for number in reversed(numbers)),
    ]


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Pass]:
    """Return forward passes until the first backward can start, then one of each in turn."""
    num_ahead = min(num_stages - 1 - stage, num_micro_batches)
    forwards = [Pass(is_forward=True, micro_batch=number) for number in range(num_micro_batches)]
    backwards = [Pass(is_forward=False, micro_batch=number) for number in range(num_micro_batches)]
    return _in_turns(forwards, backwards, num_ahead)


def interleaved(
    stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 2
) -> list[Pass]:
    """Return Megatron's interleaved order: each stage has `num_chunks` separate parts of the model.

    Raises:
        ValueError: the number of micro-batches is no multiple of the number of stages.
    """
    if num_micro_batches % num_stages:
        raise ValueError(f"{num_micro_batches} micro-batches are not a multiple of {num_stages}")
    total = num_micro_batches * num_chunks

    def numbered(place: int, *, is_forward: bool) -> Pass:
        turn, within = divmod(place, num_stages * num_chunks)
        chunk, number = divmod(within, num_stages)
        return Pass(
            is_forward=is_forward,
            micro_batch=turn * num_stages + number,
            chunk=chunk if is_forward else num_chunks - 1 - chunk,
        )

    num_ahead = min(2 * (num_stages - 1 - stage) + (num_chunks - 1) * num_stages, total)
    forwards = [numbered(place, is_forward=True) for place in range(total)]
    backwards = [numbered(place, is_forward=False) for place in range(total)]
    return _in_turns(forwards, backwards, num_ahead)


ORDERS: dict[str, Callable[[int, int, int], list[Pass]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}
"""Functions by name: from stage, stages and micro-batches to the passes of that stage."""


def _in_turns(forwards: list[Pass], backwards: list[Pass], num_ahead: int) -> list[Pass]:
    passes = forwards[:num_ahead]
    rest = forwards[num_ahead:]
    for forward, backward in zip(rest, backwards, strict=False):
        passes += [forward, backward]
    return passes + backwards[len(rest) :]
