"""DDP's gradient buckets, which its reducer, in C++, sends during a backward pass.

A communication hook would show them, but would have to average them, too: the reducer multiplies
or divides, parameter by parameter, depending on the layout of the gradient in its bucket, which a
hook cannot know; and a hook cannot be removed. So the reducer computes as usual but gets a process
group of ours, which passes every call on to the model's own group. Gradients are the same bit for
bit, and giving the group back undoes it.

A hook that the user registers keeps its place: it is called within the range of its bucket.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import distributed
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel

from instrument.core import calls, completion, nvtx_ranges, operations, steps, wrapping
from instrument.core.operations import BLOCK, label, operation
from instrument.core.patching import Patches
from instrument.core.wrapping import compiler_of_thread, suspend, untraced, without_overrides
from traceprof import labels

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket, Reducer
    from torch.futures import Future

    Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]

Result = TypeVar("Result")

_log = logging.getLogger("traceprof.instrument")


class _Thread(threading.local):
    in_hook = False
    """True while a user's hook runs: its operations are inside the bucket's range."""


class _Process:
    is_on = False


_thread = _Thread()
_process = _Process()


class _Bucket(NamedTuple):
    """The facts of a bucket that are the same in every step."""

    label: object  # of the bucket, prepared
    operation: str  # the label of the operation that sends it, up to its sequence number
    group: operations.Group  # which numbers it
    reports: bool  # whether the backend is known to report its end
    # whether it is on the CPU; else the host sees when the work is queued, not its end
    is_cpu: bool
    is_last: bool  # whether the next one begins another backward pass


class _ObservedGroup(distributed.ProcessGroup):
    """A process group for a model's reducer that passes all calls on to the model's own."""

    def __init__(self, observed: distributed.ProcessGroup, parameter_bytes: int) -> None:
        super().__init__(observed.rank(), observed.size())  # type: ignore[call-arg]  # (not in the stub)
        self.observed = observed
        self.is_given = False
        self._parameter_bytes = parameter_bytes
        # Key: index, bytes of the buckets before, its own bytes, and its type.
        self._buckets: dict[tuple[int, int, int, torch.dtype], _Bucket | None] = {}
        self.restart()

    def restart(self) -> None:
        """Expect the first bucket next."""
        self._index = 0
        self._seen_bytes = 0

    @untraced
    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Reduce a bucket, or the map of the parameters that were used."""
        if not _process.is_on or _thread.in_hook:
            return self.observed.allreduce(tensors, options)
        steps.listener.bucket_is_sent()
        if not nvtx_ranges.is_recording():
            return self.observed.allreduce(tensors, options)
        compiler = compiler_of_thread()
        outer = calls.thread.level
        is_open = False
        ranges: list[Any] = []
        try:
            suspend(None)
            with without_overrides():
                bucket = self._next(tensors)
            if bucket is not None:
                # The operation's range, too, from prepared facts: the general way would take three
                # times as long, once per bucket, while all caches hold the model.
                opened = nvtx_ranges.message(bucket.operation, next(bucket.group.collectives))
                started = (bucket.label, opened) if bucket.reports else (bucket.label,)
                nvtx_ranges.start_into(ranges, *started)
                is_open = True
                nvtx_ranges.push(opened)
                calls.thread.level = calls.INSIDE
            suspend(compiler)
            work = self.observed.allreduce(tensors, options)
            suspend(None)
            if bucket is not None:
                is_open = False
                nvtx_ranges.pop()
                if bucket.is_cpu and completion.follow(work, ranges, labels.BUCKET):
                    ranges = []
            return work
        finally:
            calls.thread.level = outer
            try:
                if is_open:
                    nvtx_ranges.pop()
            finally:
                try:
                    nvtx_ranges.end_all(ranges)  # nothing else will end them
                finally:
                    suspend(compiler)

    @untraced
    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Agree on the buckets when they are rebuilt."""
        return self.observed.broadcast(tensors, options)

    def _next(self, tensors: list[torch.Tensor]) -> _Bucket | None:
        """Return the bucket that is sent now: they are sent in order.

        The last one completes the bytes of all parameters: none does if a built-in hook halves
        them.
        """
        tensor = tensors[0]
        dtype = tensor.dtype
        num_bytes = tensor.numel() * dtype.itemsize  # a sparse tensor has no `nbytes`
        key = self._index, self._seen_bytes, num_bytes, dtype
        try:
            bucket = self._buckets[key]
        except KeyError:
            bucket = self._buckets[key] = self._learn(tensors, *key)
        if bucket is not None:
            if bucket.is_last:
                self.restart()
            else:
                self._index += 1
                self._seen_bytes += num_bytes
        return bucket

    def _learn(
        self,
        tensors: list[torch.Tensor],
        index: int,
        seen_bytes: int,
        num_bytes: int,
        dtype: torch.dtype,
    ) -> _Bucket | None:
        """Return the facts of a bucket; None for types that gradients cannot have."""
        if not (dtype.is_floating_point or dtype.is_complex):
            return None
        try:
            unnumbered = operation(self.observed, tensors, kind=BLOCK, is_async=True)
            labelled, group = label("all_reduce", unnumbered), operations.find(self.observed)
        except Exception as error:
            if not wrapping.is_ours(error):
                raise
            wrapping.complain("a bucket of DDP", error)
            return None
        if labelled is None or group is None:
            return None
        text, _, reports = labelled
        is_cpu = tensors[0].is_cpu
        is_last = seen_bytes + num_bytes >= self._parameter_bytes
        named = nvtx_ranges.prepare(_label(index, num_bytes, dtype, is_last))
        return _Bucket(named, f"{text}{labels.NUMBERED}", group, reports, is_cpu, is_last)


_observed: weakref.WeakKeyDictionary[DistributedDataParallel, _ObservedGroup]
_observed = weakref.WeakKeyDictionary()
"""Groups by model: C++ calls them as long as the model lives, but does not keep them alive."""


def install(patches: Patches) -> None:
    """Wrap the buckets of every model, from its next forward pass on."""
    prepare = DistributedDataParallel._pre_forward  # noqa: SLF001  (`replicate` calls it, too)
    register_builtin = DistributedDataParallel._register_builtin_comm_hook  # noqa: SLF001
    register = distributed._register_comm_hook  # type: ignore[attr-defined]  # noqa: SLF001

    @untraced
    @functools.wraps(prepare)
    def observe_and_prepare(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not is_compiling():
            compiler = compiler_of_thread()
            try:
                suspend(None)
                _observe(self)
            finally:
                suspend(compiler)
        return prepare(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    @functools.wraps(register_builtin)
    def observe_and_register(self: DistributedDataParallel, comm_hook_type: Any) -> None:  # noqa: ANN401
        _observe(self)  # a built-in hook, in C++, keeps the reducer's group
        register_builtin(self, comm_hook_type)  # type: ignore[no-untyped-call]

    @functools.wraps(register)
    def register_named(reducer: Reducer, state: object, hook: Hook) -> None:
        register(reducer, state, _named(hook))

    patches.on_restore(_switch_off)
    _process.is_on = True
    patches.replace(DistributedDataParallel, "_pre_forward", observe_and_prepare)
    patches.replace(DistributedDataParallel, "_register_builtin_comm_hook", observe_and_register)
    patches.replace(distributed, "_register_comm_hook", register_named)


def _switch_off() -> None:
    _process.is_on = False
    for model, group in list(_observed.items()):
        model.reducer._update_process_group(model.process_group)  # noqa: SLF001
        group.is_given = False


def _observe(model: DistributedDataParallel) -> None:
    if not _process.is_on:
        return
    try:
        group = _observed.get(model)
        if group is None or group.observed is not model.process_group:
            facts = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001
            group = _ObservedGroup(model.process_group, facts["total_parameter_size_bytes"])
            _observed[model] = group
        group.restart()
        if not group.is_given:
            model.reducer._update_process_group(group)  # noqa: SLF001
            group.is_given = True
    except Exception as error:
        if not wrapping.is_ours(error):
            raise
        _process.is_on = False
        _log.warning("DDP's buckets cannot be observed", exc_info=True)


def _named(hook: Hook) -> Hook:
    """Return the user's hook with a range for its bucket, until the future that it returns.

    DDP cannot remove a hook: once disabled, this one only calls the user's.
    """

    @untraced
    @functools.wraps(hook)
    def named(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:  # noqa: ANN401
        if not _process.is_on:
            return hook(state, bucket)
        steps.listener.bucket_is_sent()
        if not nvtx_ranges.is_recording():
            return hook(state, bucket)
        compiler = compiler_of_thread()
        ranges: list[Any] = []
        try:
            suspend(None)
            tensor = bucket.buffer()
            num_bytes = tensor.numel() * tensor.dtype.itemsize
            label = _label(bucket.index(), num_bytes, tensor.dtype, bucket.is_last())
            nvtx_ranges.start_into(ranges, nvtx_ranges.message(label))
            _thread.in_hook = True
            suspend(compiler)
            future = hook(state, bucket)
            suspend(None)
            if tensor.is_cpu and completion.follow(future, ranges, labels.BUCKET):
                ranges = []
            return future
        finally:
            _thread.in_hook = False
            try:
                nvtx_ranges.end_all(ranges)  # nothing else will end them
            finally:
                suspend(compiler)

    return named


@functools.lru_cache(maxsize=1024)  # the same buckets in every step
def _label(index: int, num_bytes: int, dtype: torch.dtype, last: bool) -> str:
    facts = {
        "index": str(index),
        "bytes": str(num_bytes),
        "dtype": str(dtype).removeprefix("torch."),
        "last": str(int(last)),
    }
    return str(labels.Label(labels.BUCKET, facts))
