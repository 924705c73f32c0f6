"""One range for each call, and no harm: exceptions, threads, processes, our own failures."""

import functools
import gc
import logging
import os
import subprocess
import sys
import threading
import traceback
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import distributed_c10d

import instrument
from instrument.core import calls, operations, wrapping
from tests.support.recording import SeenCalls, pushed
from tests.support.workers import until

SELF = "group=0 rank=0 size=1"
HELD = functools.partial(dist.all_reduce, async_op=False)


def ones() -> torch.Tensor:
    return torch.ones(4)


@pytest.mark.usefixtures("alone")
def test_an_exception_passes_with_the_range_closed(recorded: list[str]) -> None:
    instrument.enable()
    with pytest.raises(TypeError, match="Expected parameter `tensor`") as caught:
        dist.all_reduce([ones()])
    with pytest.raises(RuntimeError, match="invalid root rank"):
        dist.broadcast(ones(), 7)
    assert [event.split(" ")[0] for event in recorded] == ["push", "pop"] * 2
    # One frame of ours, and no exception of ours behind it.
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames if "instrument/core/calls" in frame.filename] == [
        "all_reduce"
    ]
    assert caught.value.__context__ is None
    recorded.clear()
    dist.barrier()
    assert pushed(recorded)[0].startswith("barrier")


class Bucket(list[torch.Tensor]):
    """A list of the program's own."""


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:`torch.distributed.all_reduce_coalesced`:FutureWarning")
def test_lists_of_any_class_and_groups_by_any_name(recorded: list[str]) -> None:
    group: Any = dist.new_group([0])
    instrument.enable()
    dist.all_reduce_coalesced(Bucket([ones(), ones()]))
    broadcast: Any = dist._broadcast_coalesced  # type: ignore[attr-defined]
    broadcast(process_group=group, tensors=[ones()], buffer_size=1 << 20)
    assert pushed(recorded) == [
        f"all_reduce_coalesced bytes=32 dtype=float32 {SELF} seq=0",
        "_broadcast_coalesced src=0 bytes=16 dtype=float32 group=1 rank=0 size=1 seq=0",
    ]


def test_without_a_group_the_function_says_so(
    recorded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    instrument.enable()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.all_reduce(ones())
    assert recorded == []
    assert not any(record.name == "traceprof.instrument" for record in caplog.records)


@pytest.mark.usefixtures("alone")
def test_our_failures_are_logged_once_and_the_call_goes_on(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instrument.enable()
    monkeypatch.setattr(wrapping, "complained", set())
    monkeypatch.setattr(operations, "find", lambda _: 1 // 0)
    tensor = ones()
    with caplog.at_level(logging.WARNING, logger="traceprof.instrument"):
        for _ in range(2):
            assert dist.all_reduce(tensor) is None
    assert caplog.messages == ["all_reduce could not be labelled"]
    assert pushed(recorded) == ["wait", "wait"]  # as PyTorch does for what it does at once
    assert torch.equal(tensor, ones())


@pytest.mark.usefixtures("alone")
def test_a_function_of_unknown_parameters_is_left_out_alone(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wrapping, "complained", set())
    for name in ("broadcast", "isend"):
        function = lambda *_: "the function's own"  # noqa: E731
        monkeypatch.setattr(distributed_c10d, name, function)
        monkeypatch.setattr(dist, name, function)
    instrument.enable()
    assert dist.broadcast(ones(), 0) == "the function's own"
    dist.all_reduce(ones())
    assert pushed(recorded)[0] == f"all_reduce bytes=16 dtype=float32 {SELF} seq=0"
    assert dist.P2POp(dist.irecv, ones(), 0).op is dist.irecv
    assert caplog.messages == [f"{name} could not be labelled" for name in ("broadcast", "isend")]


@pytest.mark.usefixtures("alone")
def test_who_holds_a_wrapper_calls_the_original_after_disable(recorded: list[str]) -> None:
    instrument.enable()
    wrapper, method = dist.all_reduce, dist.group.WORLD.allreduce  # type: ignore[union-attr]
    instrument.disable()
    wrapper(ones())
    method([ones()]).wait()
    assert recorded == []
    instrument.enable()
    wrapper(ones())
    assert len(pushed(recorded)) == 1


@pytest.mark.usefixtures("alone")
def test_who_holds_an_original_is_seen_at_the_method(recorded: list[str]) -> None:
    instrument.enable()
    HELD(ones())
    text = f"all_reduce bytes=16 dtype=float32 {SELF} seq=0"
    assert pushed(recorded) == [text, "wait op=all_reduce group=0 seq=0"]


@pytest.mark.usefixtures("alone")
def test_transfers_keep_their_direction_from_before_and_after(recorded: list[str]) -> None:
    originals = dist.isend, dist.irecv
    before = [dist.P2POp(original, ones(), 0) for original in originals]
    instrument.enable()
    wrappers = dist.isend, dist.irecv
    meanwhile = [dist.P2POp(function, ones(), 0) for function in (*originals, *wrappers)]
    for held in (*before, *meanwhile):
        assert held.op in wrappers
        assert "P2POp(" in repr(held)
    assert [held.op.__name__ for held in meanwhile] == ["isend", "irecv"] * 2
    with pytest.raises(ValueError, match="Invalid ``op``"):
        dist.P2POp(dist.all_reduce, ones(), 0)
    instrument.disable()
    for held in (*before, *meanwhile):
        assert held.op in originals
    assert vars(before[0]).keys() == vars(meanwhile[2]).keys()


@pytest.mark.usefixtures("alone")
def test_each_thread_nests_for_itself(recorded: list[str]) -> None:
    instrument.enable()
    inside, done = threading.Event(), threading.Event()
    original: Any = distributed_c10d._object_to_tensor

    def wait_inside(*args: Any) -> Any:
        inside.set()
        assert done.wait(10)
        return original(*args)

    distributed_c10d._object_to_tensor = wait_inside
    try:
        objects = [None]
        thread = threading.Thread(target=dist.all_gather_object, args=(objects, "object"))
        thread.start()
        assert inside.wait(10)
        assert calls.thread.level == calls.FREE
        dist.monitored_barrier()  # another operation of the same group at the same time
        done.set()
        thread.join()
    finally:
        distributed_c10d._object_to_tensor = original
    assert objects == ["object"]
    assert sorted(pushed(recorded)) == [
        f"all_gather_object {SELF} seq=0",
        f"monitored_barrier {SELF} seq=1",
    ]


@pytest.mark.usefixtures("alone")
def test_a_forked_child_goes_on(recorded: list[str]) -> None:
    instrument.enable()
    dist.barrier()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # groups that wait to be collected have threads that are not here
        dist.monitored_barrier()
        instrument.disable()
        text = " ".join(pushed(recorded)) + f" {calls._process.is_on}"
        os.write(writer, text.encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    written = os.read(reader, 1000).decode()
    assert written == f"barrier {SELF} seq=0 monitored_barrier {SELF} seq=1 False"


@pytest.mark.long
def test_an_operation_under_way_ends_before_the_interpreter() -> None:
    code = """
import threading, time, torch
from instrument.core import completion, nvtx_ranges
nvtx_ranges.end = lambda handle: print("end", handle, flush=True)
future = torch.futures.Future()
def complete():
    time.sleep(0.5)
    future.set_result(1)
threading.Thread(target=complete, daemon=True).start()
completion.end_when_done(future, ["range"])
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "end range\n", "")


def two_lives(folder: Any) -> list[weakref.ref[Any]]:
    """Make the default group twice, with two barriers each; return the groups that were."""
    gone = []
    for life in range(2):
        store = f"file://{folder}/{life}"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        gone.append(weakref.ref(distributed_c10d._get_default_group()))
        dist.barrier()
        dist.barrier()
        dist.destroy_process_group()
    return gone


def test_a_new_group_of_the_same_name_starts_anew(recorded: list[str], tmp_path: Any) -> None:
    instrument.enable()
    two_lives(tmp_path)
    assert pushed(recorded) == [f"barrier {SELF} seq=0", f"barrier {SELF} seq=1"] * 2


@pytest.mark.usefixtures("recorded")
def test_groups_that_are_gone_are_not_kept(tmp_path: Any) -> None:
    gc.collect()
    before = len(operations._groups)  # PyTorch keeps groups of tensor-parallel models for ever
    instrument.enable()
    gone = two_lives(tmp_path)

    def is_all_gone() -> bool:
        gc.collect()
        return len(operations._groups) == before and not any(group() for group in gone)

    until(is_all_gone)  # a thread of Gloo's holds the last one for a moment more


@pytest.mark.usefixtures("alone")
def test_groups_are_told_by_name_and_by_what_the_user_calls_them(recorded: list[str]) -> None:
    instrument.enable()
    dist.barrier(dist.new_group([0]))
    dist.barrier(dist.new_group([0], group_desc="data parallel"))
    assert pushed(recorded) == [
        "barrier group=1 rank=0 size=1 seq=0",
        "barrier group=2 rank=0 size=1 desc=data_parallel seq=0",
    ]


class Python(ProcessGroup):
    """A group that is a Python class, of which C++ looks up every method."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]

    def broadcast(self, tensors: Any, options: Any) -> Any:  # type: ignore[override]
        return super().broadcast(tensors, options)


@pytest.mark.usefixtures("alone")
def test_sparse_tensors_are_what_they_store(recorded: list[str]) -> None:
    instrument.enable()
    dist.all_reduce(torch.eye(3).to_sparse())
    assert pushed(recorded) == [f"all_reduce bytes={3 * 4 + 2 * 3 * 8} dtype=float32 {SELF} seq=0"]


@pytest.mark.usefixtures("alone")
def test_groups_that_are_python_classes_fail_as_before(recorded: list[str]) -> None:
    group = Python()

    def failures() -> list[str]:
        result = []
        for call in (
            lambda: group.allreduce([ones()]),
            lambda: group.broadcast([ones()], dist.BroadcastOptions()),
        ):
            with pytest.raises(RuntimeError) as caught:
                call()
            result.append(str(caught.value).splitlines()[0])
        return result

    before = failures()
    instrument.enable()
    assert failures() == before


@pytest.mark.usefixtures("alone")
def test_methods_take_what_they_took(recorded: list[str]) -> None:
    instrument.enable()
    group, tensor, output = distributed_c10d._get_default_group(), ones(), ones()
    group.allreduce(tensor)
    group.allreduce(tensors=[tensor])
    group.broadcast(tensor, 0)
    group.broadcast([tensor], dist.BroadcastOptions())
    group.reduce(tensor, root=0)
    group.allgather([[output]], [tensor])
    group.allgather([output], input_tensor=tensor)
    group.gather([output], tensor, 0)
    group.scatter(output_tensors=[output], input_tensors=[[tensor]])
    group.alltoall_base(output, tensor, [], [])
    group.barrier()
    whole = f"bytes=16 dtype=float32 {SELF}"
    labels = [text for text in pushed(recorded) if not text.startswith("wait")]
    assert [text.rsplit(" ", 1)[0] for text in labels] == [
        *[f"all_reduce {whole}"] * 2, *[f"broadcast src=0 {whole}"] * 2, f"reduce dst=0 {whole}",
        *[f"all_gather {whole}"] * 2, f"gather dst=0 {whole}", f"scatter src=0 {whole}",
        f"all_to_all_single {whole}", f"barrier {SELF}",
    ]  # fmt: skip


@pytest.mark.usefixtures("alone")
def test_an_exception_in_a_coalescing_block(recorded: list[str]) -> None:
    instrument.enable()
    with pytest.raises(KeyError, match="the user's"), distributed_c10d._coalescing_manager():
        raise KeyError("the user's")
    assert recorded == [f"push coalesced {SELF}", "pop"]
    assert calls.thread.level == calls.FREE


@pytest.mark.usefixtures("alone")
def test_modes_of_the_user_see_the_same_calls(recorded: list[str]) -> None:
    def seen() -> list[str]:
        with SeenCalls() as mode:
            dist.all_reduce(ones())
            dist.all_gather_single(ones(), ones())
        return [function.__name__ for function in mode.functions]

    before = seen()
    instrument.enable()
    assert seen() == before
    assert [text.split(" ")[0] for text in pushed(recorded)] == ["all_reduce", "all_gather_single"]
