"""What three ranks of DDP and FSDP train is the same bit for bit, and every byte is named."""

from collections import Counter
from typing import Any

import pytest

from tests.support import recording
from tests.support.programs import training_ranks
from tests.support.programs.training_ranks import ACCUMULATED, CASES, LAYER_BYTES, LAYERS, STEPS
from tests.support.recording import pushed
from traceprof import labels

pytestmark = pytest.mark.slow

Seen = list[dict[str, Any]]

TOTAL_BYTES = LAYERS * LAYER_BYTES
WAYS = [f"{case} of {size}" for case in CASES for size in (2, 3)]
OTHERS = ["join", "fsdp1", "fsdp2", "replicate"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Run the ranks once; return what each saw."""
    return recording.run(training_ranks.run, training_ranks.SIZE, tmp_path_factory)


def of_rank_0(seen: Seen, way: str) -> list[str]:
    events: list[str] = seen[0][way]["events"]
    return events


def buckets(events: list[str]) -> list[dict[str, str]]:
    """Return the facts of the buckets, in the order in which they became ready."""
    starts = [event.removeprefix("start ") for event in events if event.startswith("start bucket")]
    return [dict(labels.parse(text).facts) for text in starts]


@pytest.mark.parametrize("way", [*WAYS, *OTHERS])
def test_parameters_and_gradients_are_the_same_bit_for_bit(seen: Seen, way: str) -> None:
    size = 2 if way.endswith("of 2") else 3
    assert all(seen[rank][way]["same"] for rank in range(size))


@pytest.mark.parametrize("way", [*WAYS, *OTHERS])
def test_every_range_is_closed(seen: Seen, way: str) -> None:
    events = of_rank_0(seen, way)
    assert events.count("pop") == len(pushed(events)) > 0
    started = Counter(event.split(" ", 1)[1] for event in events if event.startswith("start "))
    ended = Counter(event.split(" ", 1)[1] for event in events if event.startswith("end "))
    assert started == ended


def test_nothing_is_named_any_more_after_disabling(seen: Seen) -> None:
    assert seen[0]["after"]["events"] == []


@pytest.mark.parametrize("way", [way for way in WAYS if "unused" not in way])
def test_buckets_are_numbered_and_hold_all_gradients(seen: Seen, way: str) -> None:
    steps = buckets(of_rank_0(seen, way))
    passes: list[list[dict[str, str]]] = []
    for bucket in steps:
        if bucket["index"] == "0":
            passes.append([])
        assert bucket["index"] == str(len(passes[-1]))
        passes[-1].append(bucket)
    assert len(passes) == STEPS
    for buckets_of_pass in passes:
        assert [bucket["last"] for bucket in buckets_of_pass] == ["0"] * (
            len(buckets_of_pass) - 1
        ) + ["1"]
    if "half" in way:
        assert {bucket["dtype"] for bucket in steps} == {"float16"}
        assert {sum(int(bucket["bytes"]) for bucket in buckets_) for buckets_ in passes} == {
            TOTAL_BYTES // 2
        }
    elif "mixed" not in way:
        assert {sum(int(bucket["bytes"]) for bucket in buckets_) for buckets_ in passes} == {
            TOTAL_BYTES
        }
        assert len(passes[-1]) == LAYERS  # once they are made anew, by the order of the first pass


@pytest.mark.parametrize("way", [way for way in WAYS if "mixed" not in way])
def test_each_bucket_is_sent_by_one_named_call(seen: Seen, way: str) -> None:
    events = of_rank_0(seen, way)
    for place, event in enumerate(events):
        if not event.startswith("start bucket"):
            continue
        facts = labels.parse(event).facts
        call = labels.parse(next(event for event in events[place:] if event.startswith("push")))
        assert call.operation == "push all_reduce"
        assert (call.facts["bytes"], call.facts["dtype"]) == (facts["bytes"], facts["dtype"])
    sent = [
        text for text in pushed(events) if text.startswith("all_reduce") and "int32" not in text
    ]
    assert len(sent) == len(buckets(events))


@pytest.mark.parametrize("way", ["plain of 2", "plain of 3", "user's hook of 3", "mixed of 3"])
def test_ranks_agree_on_what_was_sent(seen: Seen, way: str) -> None:
    size = 2 if way.endswith("of 2") else 3

    def sent(rank: int) -> list[str]:
        calls = [text for text in pushed(seen[rank][way]["events"]) if " seq=" in text]
        return [text.replace(f"rank={rank} ", "") for text in calls]

    assert sent(0) == sent(1) == sent(size - 1)


def test_passes_and_steps(seen: Seen) -> None:
    kinds = Counter(text for text in pushed(of_rank_0(seen, "plain of 3")) if "=" not in text)
    passes = STEPS + 1  # one step computes gradients twice
    assert kinds == {"forward": passes, "backward": passes, "optimizer step": STEPS}


def test_gradients_that_are_not_sent_have_no_bucket(seen: Seen) -> None:
    events = of_rank_0(seen, "plain of 3")
    begins = [place for place, event in enumerate(events) if event == "push backward"]
    assert events[begins[ACCUMULATED] + 1] == "pop"
    assert events[begins[ACCUMULATED + 1] + 1].startswith("start bucket index=0")


def test_the_map_of_used_parameters_is_no_bucket(seen: Seen) -> None:
    events = of_rank_0(seen, "unused of 3")
    maps = [text for text in pushed(events) if text.startswith("all_reduce") and "int32" in text]
    assert len(maps) == STEPS
    assert all(facts["dtype"] == "float32" for facts in buckets(events))


@pytest.mark.parametrize("way", ["user's hook of 3", "built-in hook of 3"])
def test_a_hook_has_the_same_buckets(seen: Seen, way: str) -> None:
    assert buckets(of_rank_0(seen, way)) == buckets(of_rank_0(seen, "plain of 3"))


def test_ranks_that_ran_out_of_batches_go_on_sending(seen: Seen) -> None:
    sizes = [len(buckets(seen[rank]["join"]["events"])) for rank in range(3)]
    assert sizes[0] == sizes[1] == sizes[2] == 1 + LAYERS * 4  # of the five batches of rank 2


@pytest.mark.parametrize(
    ("way", "gather", "scatter"),
    [
        ("fsdp1", "all_gather", "reduce_scatter_single"),
        ("fsdp2", "all_gather_single", "reduce_scatter_single"),
    ],
)
def test_sharded_models_gather_and_scatter_once_for_each_layer(
    seen: Seen, way: str, gather: str, scatter: str
) -> None:
    lines = Counter(label.split(" ")[0] for label in pushed(of_rank_0(seen, way)))
    assert lines == {
        "forward": 1,
        "backward": 1,
        "optimizer": 1,
        gather: 2 * LAYERS,  # before its forward and before its backward pass
        scatter: LAYERS,
    }
