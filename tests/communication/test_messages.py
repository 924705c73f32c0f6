"""What communication kernels carried: by NCCL's payloads, by labels, by groups."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import (
    ALL_GATHER,
    ALL_REDUCE,
    SEND_RECV,
    TraceBuilder,
    call,
    label,
    payload,
    prepare,
)
from tests.support.claims import only_finding
from tests.support.traces import ranks_of
from traceprof.analyses import exposed_communication
from traceprof.communication.messages import Messages, asynchronous_calls, messages
from traceprof.errors import TraceFormatError
from traceprof.run.rank import Window


def read(builder: TraceBuilder, tmp_path: Path) -> list[Messages]:
    with ranks_of(builder.write(tmp_path)) as ranks:
        return [messages(rank) for rank in ranks]


def one(builder: TraceBuilder, tmp_path: Path) -> Messages:
    (found,) = read(builder, tmp_path)
    return found


def in_group(builder: TraceBuilder, *calls: tuple[Any, ...], at: int = 0, **how: Any) -> None:
    """Put calls between ncclGroupStart and ncclGroupEnd, which lasts from at + 50 to at + 90."""
    call(builder, "ncclGroupStart", at, at + 1, **how)
    for index, (name, *values) in enumerate(calls):
        schema = 902 if len(values) > 2 else 901
        call(builder, name, at + 2 + index, at + 3 + index, *values, schema=schema, **how)
    call(builder, "ncclGroupEnd", at + 50, at + 90, **how)


def test_a_call_without_a_group_has_the_launch_inside(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllReduce", 0, 10, 0xABC, 4096)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    builder.kernel(40, 50, ALL_REDUCE, launch=(13, 15))  # after the call's end
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [4096, -1]
    assert found.communicator_name(0) == "0x0000000000000abc"
    assert found.communicator_name(1) is None
    assert found.launch_ns.tolist() == [5, 15]
    assert found.has_call.tolist() == [True, False]


def test_a_group_launches_at_its_end(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    in_group(builder, ("ncclSend", 7, 100, 3), ("ncclRecv", 7, 150, 3))
    builder.kernel(200, 300, SEND_RECV, launch=(60, 70))
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [150]  # the larger direction
    assert found.direction.tolist() == [3]
    assert found.peer_in_communicator.tolist() == [3]
    assert found.peer_text(0) == " with 3"


def test_collectives_and_sends_of_one_group_go_to_their_own_kernels(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    in_group(builder, ("ncclAllReduce", 7, 100), ("ncclSend", 7, 30, 1), ("ncclAllReduce", 7, 20))
    builder.kernel(200, 300, ALL_REDUCE, launch=(60, 62))
    builder.kernel(300, 400, SEND_RECV, launch=(63, 65))
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [120, 30]
    assert found.direction.tolist() == [-1, 1]


def test_which_kernel_of_a_group_a_communicator_has_is_not_known(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    in_group(builder, ("ncclSend", 7, 100, 1), ("ncclRecv", 7, 90, 1), ("ncclSend", 8, 30, 1))
    builder.kernel(200, 300, SEND_RECV, launch=(63, 65), stream=9)
    builder.kernel(210, 310, SEND_RECV, launch=(60, 62), stream=8)
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [-1, -1]
    assert found.communicator_name(0) is None


def test_what_cannot_be_told_apart_is_not_known(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    in_group(builder, ("ncclAllReduce", 7, 100), ("ncclAllReduce", 7, 100))
    for start in (60, 65):  # two kernels of one communicator share the calls
        builder.kernel(140 + start, 142 + start, ALL_REDUCE, launch=(start, start))
    in_group(builder, ("ncclAllReduce", 7, 100), ("ncclAllGather", 7, 30), at=1000)
    builder.kernel(1200, 1300, ALL_REDUCE, launch=(1060, 1062))  # did the gather, too
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [-1, -1, -1]
    assert {found.communicator_name(number) for number in range(3)} == {"0x0000000000000007"}


def test_several_devices_of_one_process_share_a_group(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    in_group(builder, ("ncclAllReduce", 7, 100), ("ncclAllReduce", 7, 100))
    for device in (0, 1):
        builder.kernel(200, 300, ALL_REDUCE, launch=(60, 61), device=device)
    assert [found.bytes.tolist() for found in read(builder, tmp_path)] == [[-1], [-1]]


def test_nested_groups_launch_at_the_outermost_end(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclGroupStart", 0, 1)
    call(builder, "ncclAllReduce", 2, 3, 7, 10)
    call(builder, "ncclGroupStart", 4, 5)
    call(builder, "ncclAllReduce", 6, 7, 7, 20)
    call(builder, "ncclGroupEnd", 8, 9)
    call(builder, "ncclGroupEnd", 10, 20)
    builder.kernel(30, 40, ALL_REDUCE, launch=(11, 12))
    assert one(builder, tmp_path).bytes.tolist() == [30]


def test_a_group_that_the_capture_cut(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllReduce", 2, 3, 7, 10)  # its ncclGroupStart was before the capture
    call(builder, "ncclGroupEnd", 4, 20)
    builder.kernel(30, 40, ALL_REDUCE, launch=(11, 12))
    in_group(builder, ("ncclAllReduce", 7, 100), at=100)
    builder.kernel(300, 400, ALL_REDUCE, launch=(160, 162))
    call(builder, "ncclGroupStart", 500, 501)  # its ncclGroupEnd was after the capture
    call(builder, "ncclAllReduce", 502, 503, 7, 10)
    assert one(builder, tmp_path).bytes.tolist() == [-1, 100]


def test_threads_have_groups_of_their_own(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    in_group(builder, ("ncclAllReduce", 7, 100), tid=1001)
    in_group(builder, ("ncclAllReduce", 8, 200), tid=1002)
    builder.kernel(200, 300, ALL_REDUCE, launch=(60, 62), tid=1002)
    builder.kernel(210, 310, ALL_REDUCE, launch=(60, 62), tid=1001)
    assert one(builder, tmp_path).bytes.tolist() == [200, 100]


def test_world_size_comes_from_the_making_of_the_communicator(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder(), schemas=(901, 903))
    call(builder, "ncclCommInitRankConfig", 0, 1, 7, 16, 3, 0, schema=903)
    call(builder, "ncclAllReduce", 2, 10, 7, 4096)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    assert one(builder, tmp_path).world_size.tolist() == [16]


@pytest.mark.parametrize("offsets", [True, False])
def test_payloads_before_2_25(tmp_path: Path, *, offsets: bool) -> None:
    builder = prepare(TraceBuilder(), schemas=(904, 906), offsets=offsets)
    call(builder, "ncclAllReduce", 0, 10, 4096, 2, schema=904)
    call(builder, "ncclSend", 11, 19, 64, 5, schema=906)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    builder.kernel(30, 40, SEND_RECV, launch=(13, 15))
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [4096, 64]
    assert found.peer_in_communicator.tolist() == [-1, 5]
    assert found.communicator.tolist() == [-1, -1]


def test_payloads_as_digits_or_json(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    digits = payload(901, (1 << 64) - 1, 4096).hex()
    call(builder, "ncclAllReduce", 0, 10, binaryData=digits)
    call(builder, "ncclAllReduce", 10, 20, binaryData=f"0x{digits}")
    text = json.dumps({"NCCL communicator ID": (1 << 64) - 1, "Message size [bytes]": "4096"})
    call(builder, "ncclAllReduce", 20, 30, jsonText=text)
    for start in (1, 11, 21):
        builder.kernel(start + 40, start + 42, ALL_REDUCE, launch=(start, start))
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [4096] * 3
    assert {found.communicator_name(number) for number in range(3)} == {"0xffffffffffffffff"}


@pytest.mark.parametrize(
    "columns",
    [
        {"binaryData": b""},
        {"binaryData": b"\1\2"},
        {"binaryData": payload(901, 7, 4096)[:40]},
        {"binaryData": "no digits"},
        {"binaryData": payload(901, 7, 4096).replace(b"\x85\3", b"\x99\3")},  # unknown schema
        {"binaryData": 7},
        {"jsonText": "{"},
        {"jsonText": "[1]"},
        {"jsonText": '{"Message size [bytes]": -5}'},
        {"jsonText": '{"Message size [bytes]": 4.5}'},
        {"jsonText": '{"Message size [bytes]": 1e300}'},
        {"jsonText": '{"Message size [bytes]": "many"}'},
    ],
)
def test_a_payload_that_makes_no_sense_says_nothing(
    tmp_path: Path, columns: dict[str, Any]
) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllReduce", 0, 10, **columns)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    found = one(builder, tmp_path)
    assert (found.bytes.tolist(), found.has_call.tolist()) == ([-1], [True])


def test_ranges_of_other_domains_are_not_nccls(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllReduce", 0, 10, 7, 4096, domain=0)
    builder.raw("NVTX_EVENTS", start=0, eventType=75, globalTid=(1 << 48) | 1000 << 24,
                domainId=9, text="mine")  # fmt: skip
    call(builder, "ncclAllReduce", 10, 20, 7, 4096, domain=9)
    for start in (3, 13):
        builder.kernel(start + 20, start + 22, ALL_REDUCE, launch=(start, start))
    assert one(builder, tmp_path).has_call.tolist() == [False, False]


def test_an_export_that_lacks_the_names_of_domains(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    call(builder, "ncclAllReduce", 0, 10)
    assert one(builder, tmp_path).has_call.tolist() == [True]


def test_labels_say_the_same(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    label(builder, "all_reduce bytes=64 dtype=float32 group=0 size=8 seq=17", 0, 10)
    label(builder, "isend dst=2 bytes=32 dtype=float32 group=pp seq=4", 10, 20)
    label(builder, "reduce metrics", 20, 30)  # the user's own
    for start, name in ((3, ALL_REDUCE), (13, SEND_RECV), (23, ALL_REDUCE)):
        builder.kernel(start + 40, start + 42, name, launch=(start, start))
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [64, 32, -1]
    assert found.world_size.tolist() == [8, -1, -1]
    assert found.peer.tolist() == [-1, 2, -1]
    assert [found.communicator_name(number) for number in range(3)] == ["group 0", "group pp", None]
    assert found.peer_text(1) == " to 2"
    assert found.has_call.tolist() == [True, True, False]


def test_a_label_without_a_size_stands_for_those_inside(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    label(builder, "batch_isend_irecv", 0, 100)
    label(builder, "isend dst=2 bytes=32 group=pp", 10, 20)
    label(builder, "irecv src=2 bytes=48 group=pp", 20, 30)
    builder.kernel(140, 142, SEND_RECV, launch=(50, 60))
    label(builder, "broadcast_object_list group=0", 200, 300)
    label(builder, "broadcast bytes=8 group=0", 210, 230)
    builder.kernel(340, 342, "ncclDevKernel_Broadcast_RING_LL()", launch=(215, 220))
    found = one(builder, tmp_path)
    assert found.bytes.tolist() == [48, 8]
    assert (found.peer.tolist(), found.direction.tolist()) == ([2, -1], [3, -1])


def test_nccl_knows_better_than_a_label_but_peers_are_the_worlds(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    label(builder, "isend dst=5 bytes=32 group=pp size=2", 0, 100)
    call(builder, "ncclSend", 10, 20, 7, 33, 1, schema=902)
    builder.kernel(140, 142, SEND_RECV, launch=(15, 16))
    found = one(builder, tmp_path)
    assert (found.bytes.tolist(), found.world_size.tolist()) == ([33], [2])
    assert (found.peer_text(0), found.communicator_name(0)) == (" to 5", "0x0000000000000007")


def test_an_operation_that_the_kernels_name_hides(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllGather", 0, 10, 7, 4096)
    call(builder, "ncclSend", 10, 20, 7, 4096, 1, schema=902)
    for start in (3, 13):
        builder.kernel(start + 20, start + 22, "ncclDevKernel_Generic_4()", launch=(start, start))
    found = one(builder, tmp_path)
    names = [found.operations[index] for index in found.operation.tolist()]
    assert (names, found.bytes.tolist()) == (["AllGather", "SendRecv"], [4096, 4096])


def test_a_kernel_of_another_operation_than_the_call(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllReduce", 0, 10, 7, 4096)
    builder.kernel(20, 30, ALL_GATHER, launch=(3, 5))
    found = one(builder, tmp_path)
    assert (found.bytes.tolist(), found.communicator.tolist()) == ([-1], [0])


def test_a_call_open_at_the_captures_end(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllReduce", 0, None, 7, 4096)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    assert one(builder, tmp_path).bytes.tolist() == [4096]


def test_calls_without_any_closed_launch_range(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder())
    for name in ("ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"):
        call(builder, name, 0, None, 7, 4096)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    found = one(builder, tmp_path)
    assert (found.bytes.tolist(), found.has_call.tolist()) == ([-1], [False])


@pytest.mark.parametrize(
    ("missing", "has_call", "size"),
    [
        (("NVTX_EVENTS",), False, -1),
        (("CUPTI_ACTIVITY_KIND_RUNTIME",), False, -1),
        (("NVTX_EVENTS", "domainId"), True, -1),
        (("NVTX_EVENTS", "textId"), True, 4096),
        (("NVTX_EVENTS", "text"), False, -1),
        (("NVTX_EVENTS", "binaryData"), True, -1),
        (("NVTX_EVENTS", "jsonText"), True, 4096),
    ],
)
def test_tables_and_columns_that_are_not_there(
    tmp_path: Path, missing: tuple[str, ...], has_call: bool, size: int
) -> None:
    builder = prepare(TraceBuilder()).kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    call(builder, "ncclAllReduce", 0, 10, 7, 4096)
    found = one(builder.without(*missing), tmp_path)
    assert (found.has_call.tolist(), found.bytes.tolist()) == ([has_call], [size])


def test_a_text_where_a_time_belongs_is_damage(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder()).kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    builder.raw("NVTX_EVENTS", start=0, end="soon", eventType=59, globalTid=1, text="ncclSend")
    with pytest.raises(TraceFormatError, match=r"NVTX_EVENTS\.end holds 'soon'"):
        read(builder, tmp_path)


def test_no_communication(tmp_path: Path) -> None:
    assert len(one(prepare(TraceBuilder()).kernel(0, 10), tmp_path)) == 0


COLLECTIVES, EXCHANGES = "collectives with async_op=True", "sends and receives with isend and irecv"


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        (["AllReduce", "AlltoAll", "Barrier"], COLLECTIVES),
        (["Send", "Recv", "SendRecv", "Barrier"], EXCHANGES),
        (["AllReduce", "Recv"], f"{COLLECTIVES}, {EXCHANGES}"),
        (["Unknown"], f"{COLLECTIVES}, {EXCHANGES}"),
        (["Barrier"], f"{COLLECTIVES}, {EXCHANGES}"),
        ([], f"{COLLECTIVES}, {EXCHANGES}"),
    ],
)
def test_calls_by_what_ran(operations: list[str], said: str) -> None:
    assert asynchronous_calls(operations) == said


def test_ranks_without_a_gpu_that_only_send_and_receive(tmp_path: Path) -> None:
    """The all-reduce begins before the second window."""
    builder = TraceBuilder().label("all_reduce bytes=8 group=0 rank=0 size=2 seq=0", 0, 50)
    builder.label("step 0", 100, 900).label("forward", 100, 200)
    builder.label("send dst=1 bytes=8 group=0 rank=0 size=2 seq=0", 200, 800)
    builder.label("barrier group=0 rank=0 size=2 seq=1", 800, 810)
    advice = []
    with ranks_of(builder.write(tmp_path)) as (rank,):
        for window in (rank.window, Window(100, 900)):
            finding = only_finding(
                exposed_communication.findings(exposed_communication.run(rank, window))
            )
            advice.append(" ".join(finding.advice))
    assert ["async_op" in text for text in advice] == [True, False]
    assert ["bucket_cap_mb" in text for text in advice] == [True, False]
    assert all("isend and irecv" in text for text in advice)
