"""Every communication function, seen once, with what it moves: three ranks over Gloo."""

from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.support import recording
from tests.support.programs import three_ranks
from tests.support.recording import pushed
from traceprof import labels

pytestmark = pytest.mark.slow

Seen = list[dict[str, Any]]

FLOATS = "bytes=24 dtype=float32 group=0"  # six floats of one rank
BOTH = "bytes=32 dtype=float32 group=0"  # six and two floats
PART = "bytes=8 dtype=float32 group=0"  # a third of six floats
PAIR = "bytes=24 dtype=float32 group=1 desc=last_two"
RING = [
    *("batch_isend_irecv group=0", f"isend dst=2 {FLOATS}", f"irecv src=0 {FLOATS}"),
    *("wait op=isend group=0", "wait op=irecv group=0"),
]

# What rank 1 writes: the labels of its calls, without its rank, the group's size and the number.
BY_RANK_1 = {
    "all_reduce": [f"all_reduce {FLOATS}"],
    "all_reduce_max_of_doubles": ["all_reduce bytes=48 dtype=float64 group=0"],
    "all_reduce_coalesced": [f"all_reduce_coalesced {BOTH}"],
    "all_reduce_async": [f"all_reduce {FLOATS}", "wait op=all_reduce group=0"],
    "broadcast": [f"broadcast src=2 {FLOATS}"],
    "broadcast_in_a_group": [f"broadcast src=2 {PAIR}"],
    "broadcast_of_no_member": [f"broadcast src=1 {PAIR}"],
    "reduce": [f"reduce dst=1 {FLOATS}"],
    "all_gather": [f"all_gather {FLOATS}"],
    "all_gather_into_tensor": [f"all_gather_into_tensor {FLOATS}"],
    "all_gather_single": [f"all_gather_single {FLOATS}"],
    "_all_gather_base": [f"_all_gather_base {FLOATS}"],
    "all_gather_coalesced": [f"all_gather_coalesced {BOTH}"],
    "gather": [f"gather dst=0 {FLOATS}"],
    "scatter": [f"scatter src=1 {PART}"],
    "reduce_scatter": [f"reduce_scatter {PART}"],
    "reduce_scatter_tensor": [f"reduce_scatter_tensor {PART}"],
    "reduce_scatter_single": [f"reduce_scatter_single {PART}"],
    "_reduce_scatter_base": [f"_reduce_scatter_base {PART}"],
    "all_to_all_single": [f"all_to_all_single {FLOATS}"],
    "all_to_all": [f"all_to_all {FLOATS}"],
    "barrier": ["barrier group=0"],
    "monitored_barrier": ["monitored_barrier group=0"],
    "all_gather_object": ["all_gather_object group=0"],
    "gather_object": ["gather_object dst=2 group=0"],
    "broadcast_object_list": ["broadcast_object_list src=0 group=0"],
    "scatter_object_list": ["scatter_object_list src=0 group=0"],
    "_broadcast_coalesced": [
        "_broadcast_coalesced src=1 bytes=32 dtype=float32 group=1 desc=last_two"
    ],
    "send_and_recv": [f"recv src=0 {FLOATS}", f"send dst=0 {FLOATS}"],
    "isend_and_irecv_in_a_group": [f"isend dst=2 {PAIR}", "wait op=isend group=1"],
    "batch_isend_irecv": RING,
    "batch_isend_irecv_held": RING,
    "send_object_list_and_recv_object_list": ["recv_object_list src=0 group=0"],
    "coalescing": ["coalesced group=0", f"all_reduce {FLOATS}", f"all_reduce {PART}"],
    "coalescing_async": [
        *("coalesced group=0", f"all_reduce {FLOATS}", f"all_reduce {PART}"),
        "wait op=coalesced group=0",
    ],
    "method": [f"all_reduce {FLOATS}", "wait op=all_reduce group=0"],
    "methods_with_peers": [
        *(f"isend dst=2 {PAIR}", "wait op=isend group=1"),
        *(f"broadcast src=1 {PAIR}", "wait op=broadcast group=1"),
    ],
    "recv_from_anybody": [f"recv {FLOATS}", f"recv src=0 {FLOATS}"],
    "held": [f"all_reduce {FLOATS}", "wait op=all_reduce group=0"],
    "functional_all_reduce": [f"all_reduce {FLOATS}", "wait op=all_reduce group=0"],
    "functional_broadcast": [f"broadcast src=2 {PAIR}", "wait op=broadcast group=1"],
    "functional_all_gather_tensor": [
        *(f"all_gather_tensor {FLOATS}", "wait op=all_gather_tensor group=0")
    ],
    "functional_reduce_scatter_tensor": [
        *(f"reduce_scatter_tensor {PART}", "wait op=reduce_scatter_tensor group=0")
    ],
    "functional_all_to_all_single": [
        *(f"all_to_all_single {FLOATS}", "wait op=all_to_all_single group=0")
    ],
    "functional_all_reduce_coalesced": [
        f"all_reduce_coalesced {BOTH}",
        *["wait op=all_reduce_coalesced group=0"] * 2,
    ],
    "functional_all_gather_into_tensor_coalesced": [
        f"all_gather_into_tensor_coalesced {BOTH}",
        *["wait op=all_gather_into_tensor_coalesced group=0"] * 2,
    ],
    "functional_reduce_scatter_tensor_coalesced": [
        "reduce_scatter_tensor_coalesced bytes=12 dtype=float32 group=0",
        *["wait op=reduce_scatter_tensor_coalesced group=0"] * 2,
    ],
    "functional_permute_tensor": [*(f"permute_tensor {FLOATS}", "wait op=permute_tensor group=0")],
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Run the program once; return what each rank saw."""
    return recording.run(three_ranks.run, three_ranks.SIZE, tmp_path_factory)


def written(seen: Seen, rank: int, scenario: str) -> list[labels.Label]:
    """Return the labels of a scenario's push/pop ranges, without the barrier that ends it."""
    lines = [labels.parse(text) for text in pushed(seen[rank][scenario]["events"])]
    assert lines[-1].operation == "barrier"
    return lines[:-1]


@pytest.mark.parametrize("scenario", BY_RANK_1)
def test_each_call_is_named_once_with_what_it_moves(seen: Seen, scenario: str) -> None:
    for label, expected in zip(written(seen, 1, scenario), BY_RANK_1[scenario], strict=True):
        facts = dict(label.facts)
        if label.operation != "wait":
            assert facts.pop("rank") == "1"
            assert facts.pop("size") == ("2" if facts["group"] == "1" else "3")
        is_numbered = facts.pop("seq", None) is not None
        around_others = {label.operation, facts.get("op")} & {"batch_isend_irecv", "coalesced"}
        assert is_numbered != bool(around_others or scenario == "recv_from_anybody")
        assert str(labels.Label(label.operation, facts)) == expected


def test_every_scenario_is_expected(seen: Seen) -> None:
    for rank in seen:
        assert rank.keys() - {"complained"} == BY_RANK_1.keys()


@pytest.mark.parametrize("scenario", BY_RANK_1)
def test_results_are_the_same_bit_for_bit(seen: Seen, scenario: str) -> None:
    for rank in seen:
        assert rank[scenario]["named"] == rank[scenario]["plain"]


def test_nothing_failed_inside(seen: Seen) -> None:
    assert [rank["complained"] for rank in seen] == [False] * three_ranks.SIZE


def test_ranges_are_balanced_and_asynchronous_ones_end(seen: Seen) -> None:
    for rank in seen:
        for scenario in BY_RANK_1:
            events = rank[scenario]["events"]
            kinds = Counter(event.split(" ")[0] for event in events)
            assert kinds["push"] == kinds["pop"]
            started = [event.removeprefix("start ") for event in events if event[:6] == "start "]
            ended = [event.removeprefix("end ") for event in events if event[:4] == "end "]
            assert sorted(started) == sorted(ended)
            assert set(started) <= set(pushed(events))
            assert all(events.index(f"start {one}") < events.index(f"end {one}") for one in started)
            assert bool(started) >= (scenario in {"all_reduce_async", "method"})
        assert not any("start" in event for event in rank["isend_and_irecv_in_a_group"]["events"])


def test_collectives_have_the_same_number_on_all_members(seen: Seen) -> None:
    numbered: dict[tuple[str, str], list[str]] = defaultdict(list)
    for rank in seen:
        order: dict[str, list[int]] = defaultdict(list)
        for text in pushed([event for name in BY_RANK_1 for event in rank[name]["events"]]):
            label = labels.parse(text)
            is_transfer = label.operation.removeprefix("i")[:4] in {"send", "recv"}
            if "seq" in label.facts and label.operation != "wait" and not is_transfer:
                group, number = label.facts["group"], label.facts["seq"]
                order[group].append(int(number))
                numbered[group, number].append(label.operation)
        for numbers in order.values():
            assert numbers == list(range(len(numbers)))
    for (group, _), operations in numbered.items():
        assert len(operations) == (2 if group == "1" else 3)
        assert len(set(operations)) == 1


def test_the_k_th_send_is_the_k_th_receive(seen: Seen) -> None:
    sent, received = set(), set()
    for rank in seen:
        for text in pushed([event for name in BY_RANK_1 for event in rank[name]["events"]]):
            facts = labels.parse(text).facts
            kind = labels.parse(text).operation.removeprefix("i")[:4]
            transfer = facts.get("group"), facts.get("seq"), facts.get("bytes")
            if kind == "send":
                sent.add((facts["rank"], facts["dst"], *transfer))
            elif kind == "recv" and "seq" in facts:
                received.add((facts["src"], facts["rank"], *transfer))
    assert received < sent
    # Two more were taken by a rank that had asked for anybody's.
    assert {key[:2] for key in sent - received} == {("0", "1")}
    assert len(sent) == len(received) + 2


def test_who_is_no_member_is_left_out(seen: Seen) -> None:
    assert written(seen, 0, "broadcast_of_no_member") == []
    _, warned = seen[0]["broadcast_of_no_member"]["named"]
    assert warned == [
        "Running broadcast on global rank 0 which does not belong to the given group."
    ]
