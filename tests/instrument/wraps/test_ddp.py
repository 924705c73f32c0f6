"""DDP is as it was: hooks, errors, copies and compiled graphs (training: test_training_ranks)."""

import copy
import gc
import logging
import weakref
from typing import Any

import pytest
import torch
import torch._dynamo.backends.registry
import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.nn.parallel import DistributedDataParallel

import instrument
from instrument.core import wrapping
from instrument.wraps import ddp
from tests.support.recording import SeenCalls, pushed
from tests.support.workers import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]


def model() -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Linear(3, 2))


def train(of: torch.nn.Module) -> None:
    of(torch.ones(1, 3)).sum().backward()


def settled(events: list[str]) -> list[str]:
    """Wait until all ranges that were started have ended: threads of Gloo's end them."""

    def num(kind: str) -> int:
        return sum(event.startswith(kind) for event in events)

    until(lambda: num("start ") == num("end "))
    return events


def buckets(events: list[str]) -> list[str]:
    return [event for event in settled(events) if "bucket" in event]


BUCKET = "bucket index=0 bytes=32 dtype=float32 last=1"


def test_models_made_before_are_observed_from_their_next_forward_pass_on(
    recorded: list[str],
) -> None:
    before = model()
    train(before)
    loss = before(torch.ones(1, 3)).sum()
    instrument.enable()
    loss.backward()
    assert buckets(recorded) == []
    train(before)
    assert buckets(recorded) == [f"start {BUCKET}", f"end {BUCKET}"]


def test_the_operation_that_sends_a_bucket_has_its_own_ranges(recorded: list[str]) -> None:
    made = model()
    instrument.enable()
    for _ in range(2):  # buckets are made anew in the second pass, which broadcasts
        train(made)
    settled(recorded).clear()
    dist.all_reduce(torch.ones(8))  # is counted with them
    train(made)
    train(made)
    sent = [text for text in pushed(settled(recorded)) if text.startswith("all_reduce ")]
    numbers = [int(text.rpartition(" seq=")[2]) for text in sent]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    kinds = {text.rpartition(" seq=")[0] for text in sent}
    assert len(kinds) == 1  # as any other all-reduce of as many bytes
    for text in sent[1:]:
        at = recorded.index(f"push {text}")
        assert recorded[at - 2 : at + 2] == [
            f"start {BUCKET}",
            f"start {text}",
            f"push {text}",
            "pop",
        ]
        assert recorded.count(f"end {text}") == 1
    assert recorded.count(f"end {BUCKET}") == 2


def test_a_bucket_that_cannot_be_labelled_is_sent(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(ddp, "label", fail)
    monkeypatch.setattr(wrapping, "complained", set())
    made = model()
    instrument.enable()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            train(made)
    assert torch.equal(made.module.weight.grad, torch.full((2, 3), 3.0))
    assert buckets(recorded) == []
    assert caplog.text.count("a bucket of DDP could not be labelled") == 1


def test_a_pass_that_disabling_interrupts_goes_on_without_ranges(recorded: list[str]) -> None:
    made = model()
    instrument.enable()
    loss = made(torch.ones(1, 3)).sum()
    instrument.disable()
    loss.backward()
    train(made)
    assert buckets(recorded) == []
    assert torch.equal(made.module.weight.grad, torch.full((2, 3), 2.0))
    instrument.enable()
    train(made)
    assert len(buckets(recorded)) == 2


def test_a_hook_is_registered_at_any_time_but_once(recorded: list[str]) -> None:
    instrument.enable()
    made = model()
    train(made)
    states: list[object] = []

    def hook(state: Any, bucket: Any) -> Any:
        states.append(state)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()
    made.register_comm_hook("the user's state", hook)
    assert made._comm_hooks == [(hook, "the user's state")]
    settled(recorded).clear()
    train(made)
    instrument.disable()
    train(made)
    assert states == ["the user's state"] * 2
    assert buckets(recorded) == [f"start {BUCKET}", f"end {BUCKET}"]
    with pytest.raises(RuntimeError, match="can only be called once"):
        made.register_comm_hook(None, hook)


@pytest.mark.parametrize("returned", [None, 7])
def test_errors_of_a_hook_are_the_same_and_close_its_range(
    recorded: list[str], returned: object
) -> None:
    def failing(state: object, bucket: object) -> Any:
        if returned is None:
            raise KeyError("the user's own")
        return returned

    failing.__annotations__.clear()

    def failure() -> BaseException:
        made = model()
        made.register_comm_hook(None, failing)
        with pytest.raises((KeyError, RuntimeError)) as raised:
            train(made)
        return raised.value

    without = failure()
    instrument.enable()
    named = failure()
    assert type(named) is type(without)
    assert str(named).split(" at 0x")[0] == str(without).split(" at 0x")[0]
    assert buckets(recorded) == [f"start {BUCKET}", f"end {BUCKET}"]
    assert recorded.count("pop") == len(pushed(recorded))


def test_a_built_in_hook_outlives_disabling(recorded: list[str]) -> None:
    instrument.enable()
    made = model()
    made._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)  # type: ignore[no-untyped-call]
    train(made)
    assert len(buckets(recorded)) == 2
    instrument.disable()
    gc.collect()
    train(made)
    assert len(buckets(recorded)) == 2
    assert torch.equal(made.module.weight.grad, torch.full((2, 3), 2.0))


def test_a_model_that_is_given_another_group(recorded: list[str]) -> None:
    instrument.enable()
    made = model()
    train(made)
    another = dist.new_group([0])
    made._update_process_group(another)  # type: ignore[no-untyped-call]
    settled(recorded).clear()
    train(made)
    calls = [text for text in pushed(recorded) if text.startswith("all_reduce")]
    assert len(calls) == 1
    assert f"group={another.group_name}" in calls[0]
    instrument.disable()
    train(made)


def test_copies_of_a_model_and_its_end(recorded: list[str]) -> None:
    instrument.enable()
    made = model()
    train(made)
    assert len(buckets(recorded)) == 2
    copied = copy.deepcopy(made)
    settled(recorded).clear()
    train(copied)
    assert len(buckets(recorded)) == 2
    gone = weakref.ref(made)
    observed = len(ddp._observed)
    del made
    gc.collect()
    assert gone() is None
    assert len(ddp._observed) == observed - 1


def test_modes_do_not_see_what_we_call(recorded: list[str]) -> None:
    def run() -> list[object]:
        made = model()
        train(made)
        with SeenCalls() as mode:
            train(made)
        return mode.functions

    without = run()
    instrument.enable()
    assert run() == without


def test_without_observation_training_goes_on(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instrument.enable()
    made = model()
    monkeypatch.setattr(type(made), "_get_ddp_logging_data", None)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            train(made)
    assert [record.message for record in caplog.records] == ["DDP's buckets cannot be observed"]
    assert pushed(recorded).count("backward") == 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler looks at it
def test_compiled_models_become_the_same_graphs(recorded: list[str]) -> None:
    class Layer(torch.nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows.relu()).relu()

    def trained() -> tuple[list[str], int, list[torch.Tensor]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        operators: list[str] = []
        aot = torch._dynamo.backends.registry.lookup_backend("aot_eager")

        def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            operators.extend([*(str(node.target) for node in graph.graph.nodes), "end of graph"])
            return aot(graph, inputs)

        inside = torch.nn.Sequential(Layer(3, 3), Layer(3, 2))
        compiled = torch.compile(DistributedDataParallel(inside), backend=compiler)
        for _ in range(3):
            compiled(torch.ones(1, 3)).sum().backward()
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        return (
            operators,
            breaks,
            [parameter.grad for parameter in inside.parameters() if parameter.grad is not None],
        )

    operators, breaks, gradients = trained()
    instrument.enable()
    named_operators, named_breaks, named_gradients = trained()
    assert operators.count("end of graph") == 2
    assert named_operators == operators
    assert named_breaks <= breaks  # what prepares a pass, where it breaks without, is left alone
    assert all(map(torch.equal, named_gradients, gradients))
    assert len(buckets(recorded)) == 2 * 3
    assert pushed(recorded).count("forward") == 3
