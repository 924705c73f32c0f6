"""Traces of torch.profiler by a few events: the document's forms, times, damage."""

import gzip
import json
import lzma
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backports import zstd

from tests.support.profiler_events import PID, annotation, call, event, instant, kernel, text, write
from tests.support.selection import as_rows, known, long_after
from traceprof.errors import MissingExtraError, TraceFormatError
from traceprof.run.opening import open_report
from traceprof.trace.columns import Column
from traceprof.trace.kineto import file as packing
from traceprof.trace.kineto.events import EventDecoder, Kind, nanoseconds, nanoseconds_of_texts
from traceprof.trace.model.kinds import ApiCallKind, CopyKind, MemoryKind, api_call_kind
from traceprof.trace.model.operations import RankKey
from traceprof.trace.model.parts import Part
from traceprof.trace.model.special_values import NULL, OPEN_END
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import open_trace, reports_in

EPOCH_US = 1_700_000_000_000_000
EVENTS = [
    call(10.5, 12),
    kernel(20, 30.25, name='},\n {"ph": "X", [é'),
    kernel(40, 41, number=2, nested=[{"a": [1, {}]}, {"b": "}]"}]),
    annotation("ProfilerStep#3", 5, 50),
]


def opened(path: Path, data: str | bytes) -> Trace:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return open_trace(path)


def spans(trace: Trace, device: int = 0) -> list[tuple[int, int]]:
    (key,) = [key for key in trace.operations if key.device == device]
    kernels = trace.operations[key].kernels
    return as_rows(kernels.start_ns, kernels.end_ns)


DOCUMENT = {"schemaVersion": 1, "traceEvents": EVENTS}
FORMS = {
    "one line": json.dumps(DOCUMENT),
    "without blanks": json.dumps(DOCUMENT, separators=(",", ":")),
    "indented": json.dumps(DOCUMENT, indent=4, ensure_ascii=False),
    "a list": json.dumps(EVENTS),
    "the byte order mark": "\ufeff" + json.dumps(DOCUMENT),
    "events first": json.dumps({"traceEvents": EVENTS, "x": [{"a": 1}, {"b": [{}, {}]}], "y": 1}),
    "events last": json.dumps({"x": [{"a": 1}, {"b": 2}], "z": "traceEvents", **DOCUMENT}),
    "an event that is none": json.dumps({"traceEvents": [7, *EVENTS, None, "x", [], {}]}),
    "the last key counts": json.dumps(DOCUMENT).replace('"ts": 20', '"ts": 2, "ts": 20'),
    "NaN": json.dumps(DOCUMENT).replace('"device": 0', '"device": 0, "occupancy": NaN'),
    "a line break in a text": json.dumps(DOCUMENT).replace("ProfilerStep", "Profiler\tStep\n"),
    "half a character": json.dumps(DOCUMENT).replace("ProfilerStep", "\\ud83d Step NaN"),
    "more than 64 bits": json.dumps(DOCUMENT).replace('"device": 0', f'"device": 0, "x": {10**30}'),
    "a bare word": json.dumps(DOCUMENT).replace('"device": 0', '"device": 0, "x": -Infinity'),
    "numbers as texts": json.dumps(DOCUMENT).replace('"stream": 7', '"stream": "7"'),
    "categories of 2021": json.dumps(DOCUMENT).replace('"cat": "kernel"', '"cat": "Kernel"'),
}


FORM_BYTES = {name: form.encode() for name, form in FORMS.items()} | {
    "bytes that are no text": json.dumps(DOCUMENT).encode().replace(b"ProfilerStep", b"\x9c\xc4")
}


PACKS: dict[str, Any] = {"gzip": gzip.compress, "xz": lzma.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("form", FORM_BYTES)
@pytest.mark.parametrize("pack", [bytes, *PACKS.values()], ids=["plain", *PACKS])
def test_forms_of_a_document(form: str, pack: Any, tmp_path: Path) -> None:
    trace = opened(tmp_path / "x", pack(FORM_BYTES[form]))
    # Times count from the first event.
    assert spans(trace) == [(15_000, 25_250), (35_000, 36_000)]
    names = [trace.kernel_names[number] for number in trace.signatures.name.tolist()]
    assert names == [EVENTS[1]["name"], "k"]
    assert trace.signatures.shape.tolist() == [[1, 2, 3, 32, 1, 1]] * 2
    calls = known(trace.api_calls(PID))
    assert calls.start_ns.tolist() == [5_500]
    assert not any("cut short" in note for note in trace.notes)


def test_a_long_document_is_the_same_as_its_parts(tmp_path: Path) -> None:
    """More than is decoded at once; every fourth event is longer than a read."""
    filler = "x" * 400_000
    events = [kernel(10 * n, 10 * n + 5, number=n, text=filler * (n % 4 == 0)) for n in range(40)]
    trace = opened(tmp_path / "x.json", text(events))
    assert spans(trace) == [(10_000 * n, 10_000 * n + 5_000) for n in range(40)]


@pytest.mark.parametrize("name", PACKS)
def test_members_of_a_packed_file_and_what_fills_a_block(name: str, tmp_path: Path) -> None:
    whole, pack = text(EVENTS).encode(), PACKS[name]
    filling = b"" if name == "zstd" else bytes(512)  # which its own program refuses
    packed = pack(whole[:100]) + filling + pack(whole[100:]) + filling
    assert len(spans(opened(tmp_path / "x", packed))) == 2


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_packed_documents_larger_than_a_piece(pack: Any, tmp_path: Path) -> None:
    drawn = random.Random(1)
    events = [
        kernel(10 * n, 10 * n + 5, number=n, text=drawn.randbytes(300).hex()) for n in range(900)
    ]
    packed = pack(text(events).encode())
    assert len(spans(opened(tmp_path / "x", packed))) == 900
    trace = opened(tmp_path / "y", packed[: len(packed) // 2])
    assert any("cut short" in note for note in trace.notes)
    assert 300 < len(spans(trace)) < 600
    assert reports_in(tmp_path) == [tmp_path / "x", tmp_path / "y"]


@pytest.mark.parametrize("pack", long_after(1, [zstd.compress, gzip.compress, lzma.compress]))
def test_a_packed_bomb_takes_no_memory(pack: Any, tmp_path: Path) -> None:
    bomb = tmp_path / "x"
    bomb.write_bytes(pack(b'{"traceEvents": [' + bytes(300_000_000)))
    tracemalloc.start()
    with pytest.raises(TraceFormatError, match="no JSON"):
        open_trace(bomb)
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()


def test_zstd_without_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_ZSTD_MODULES", ())
    report = tmp_path / "r.pt.trace.json.zst"
    with pytest.raises(
        MissingExtraError, match=r"backports\.zstd is not installed; unpack it with"
    ):
        opened(report, zstd.compress(text(EVENTS).encode()))
    assert reports_in(tmp_path) == [report]


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_what_was_cut_is_read_as_far_as_it_goes(pack: Any, tmp_path: Path) -> None:
    whole = text(EVENTS, displayTimeUnit="ms")
    data = pack(whole.encode())
    complete = [whole.index(json.dumps(event["name"])) for event in EVENTS]
    seen = set()
    for length in range(1, len(data) - 8, 7):  # the last eight bytes of gzip are a checksum
        try:
            trace = opened(tmp_path / "x", data[:length])
        except TraceFormatError:
            seen.add(-1)
            assert pack is not bytes or length < complete[1]
            continue
        assert any("cut short" in note for note in trace.notes)
        found = sum(len(spans(trace, key.device)) for key in trace.operations)
        seen.add(found)
        if pack is bytes:
            # A kernel is complete some time after its name, before the name of the next event.
            least = sum(length >= place for place in complete[2:4])
            assert least <= found <= least + 1
    assert seen >= {-1, 0, 1, 2} if pack is bytes else seen >= {-1, 2}


MALFORMED = {
    "no comma": ('"ph": "X"', '"ph" "X"'),
    "a bare word": ('"ts": 40', '"ts": fourty'),
    "a quote too many": ('"cat": "kernel"', '"cat": "ker"nel"'),
    "no comma between events": ("},\n  {", "}\n  {"),
    "a bracket too many": ('"nested": [', '"nested": [}'),
    "a second list": ('"schemaVersion": 1', '"traceEvents": [{"ph": "X"}]'),
}
DEEP = '{"traceEvents": [{"ph": "X", "args": ' + "[" * 100_000 + "]" * 100_000 + "}]}"
REFUSED = {
    **{
        what: (text(EVENTS).replace(*damage), r"no JSON at byte \d+")
        for what, damage in MALFORMED.items()
    },
    "deep nesting": (DEEP, "no JSON"),
    **{
        what: (document, "no complete event")
        for what, document in {
            "another document": '{"name": "x", "version": [1, {"a": 2}]}',
            "no events": '{"schemaVersion": 1, "traceEvents": []}',
            "no complete event": '{"traceEvents": [{"ph": "M"}, {"ph": "X", "ts": 1}]}',
            "an empty list": "[]",
            "a number": '{"traceEvents": 7}',
            "marks alone": text([instant("saved", 1)]),
        }.items()
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_trace_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    document, why = REFUSED[what]
    with pytest.raises(TraceFormatError, match=why) as raised:
        opened(tmp_path / "x.json", document)
    assert "\n" not in str(raised.value)


def test_traces_of_several_processes_in_one_file_are_refused(tmp_path: Path) -> None:
    for merged in (call(60, 70, number=2), annotation("ProfilerStep#3", 60, 70)):
        events = [*EVENTS, {**merged, "pid": PID + 1}]
        with pytest.raises(TraceFormatError, match="events of 2 processes") as error:
            open_trace(write(tmp_path / "x.json", events))
        assert "give the traces that each process wrote" in str(error.value)


@pytest.mark.parametrize("name", PACKS)
def test_a_damaged_packed_file_is_refused(name: str, tmp_path: Path) -> None:
    how = {"options": {zstd.CompressionParameter.checksum_flag: 1}} if name == "zstd" else {}
    data = bytearray(PACKS[name](text(EVENTS * 40).encode(), **how))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(TraceFormatError, match=rf"a damaged {name} file|no JSON"):
        opened(tmp_path / "x", bytes(data))


def test_a_file_that_is_written_to_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", EVENTS)

    class Writer:
        def expect(self, _number: int) -> None: ...

        def advance(self, _number: int) -> None:
            with path.open("a") as file:
                file.write(" ")

    with pytest.raises(TraceFormatError, match="another process wrote to it"):
        open_trace(path, Writer())


def test_what_cannot_be_used_is_counted(tmp_path: Path) -> None:
    bad = [
        {**kernel(1, 2), "ts": None},
        {**kernel(1, 2), "dur": -1},
        {**kernel(1, 2), "ts": 1e30},
        {**kernel(1, 2), "args": {}},
        {**kernel(1, 2), "args": {"device": "none"}},
        {**call(1, 2), "tid": "main"},
    ]
    trace = opened(tmp_path / "x", text([*EVENTS, *bad]))
    assert len(spans(trace)) == 2
    assert [note for note in trace.notes if note.startswith(f"{len(bad)} events")]


# -- times ----------------------------------------------------------------------------------------


def test_times_since_1970_with_decimals_are_exact(tmp_path: Path) -> None:
    # A float of that size is exact to a quarter of a microsecond.
    whole = text([kernel(20, 30), kernel(40, 50, number=2)])
    whole = whole.replace('"ts": 20', f'"ts": {EPOCH_US}.123').replace(
        '"ts": 40', f'"ts": {EPOCH_US}.987'
    )
    trace = opened(tmp_path / "x", whole)
    assert trace.session.start_utc_ns == EPOCH_US * 1000 + 123
    assert spans(trace) == [(0, 10_000), (864, 10_864)]


def test_times_count_from_their_base(tmp_path: Path) -> None:
    base = EPOCH_US * 1000
    trace = opened(tmp_path / "x", text(EVENTS, baseTimeNanoseconds=base))
    assert trace.session.start_utc_ns == base + 5_000
    assert opened(tmp_path / "y", text(EVENTS)).session.start_utc_ns is None


@pytest.mark.parametrize(
    ("written", "time_ns"),
    [
        ("0", 0), ("17", 17_000), ("1.5", 1_500), ("1.005", 1_005), ("0.0004", 0), ("0.0006", 1),
        ("1700000000000000.123", EPOCH_US * 1000 + 123), ("-3.25", -3_250), ("1e3", 1_000_000),
        ("1.7E15", EPOCH_US * 1000), ("null", NULL), ("1e400", NULL), ('"x"', NULL), ("NaN", NULL),
        ("4503599627370496", (1 << 52) * 1000), ("4503599627370497", NULL),
    ],
)  # fmt: skip
def test_times_of_texts(written: str, time_ns: int) -> None:
    assert nanoseconds_of_texts([b"1", written.encode()]).tolist() == [1_000, time_ns]


def test_times_of_numbers() -> None:
    assert nanoseconds(np.array([1, 2**52, 2**60])).tolist() == [1_000, (1 << 52) * 1000, NULL]
    largest = 8_796_093_022_207.999  # below which floats tell nanoseconds
    times = np.array([0.001, 3743411222487.063, largest, np.nan, np.inf, 1e17])
    assert nanoseconds(times).tolist() == [
        1, 3743411222487063, 8796093022207999, NULL, NULL, NULL,
    ]  # fmt: skip


# -- what events tell -----------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [None, "7", "none", 1 << 63, -(1 << 63) - 1, -(1 << 63)])
def test_ids_are_the_same_beside_others(odd: object) -> None:
    """Columns without odd values are made in another way than those with some."""
    events = [{**call(1, 2, number=number), "tid": number} for number in range(3)]
    plain = EventDecoder().text(json.dumps(events).encode())[Kind.API_CALL]
    events[1] |= {"tid": odd}
    mixed = EventDecoder().text(json.dumps(events).encode())[Kind.API_CALL]
    assert plain.integers("tid").tolist() == [0, 1, 2]
    assert plain.integers("args.correlation").tolist() == [0, 1, 2]
    assert mixed.integers("tid").tolist() == [0, 7 if odd == "7" else NULL, 2]


@pytest.mark.parametrize("odd", [None, 3, 10**400])
def test_times_are_the_same_beside_others(odd: int | None) -> None:
    events = [{**call(1, 2), "ts": time} for time in (1.5, odd, 2.25)]
    for order in (events, events[::-1], events[1:]):
        of = EventDecoder().text(json.dumps(order).encode())[Kind.API_CALL]
        expected = {1.5: 1500, 3: 3000, 2.25: 2250}
        assert of.start_ns.tolist() == [expected.get(one["ts"], NULL) for one in order]


def test_a_rank_for_each_device(tmp_path: Path) -> None:
    events = [kernel(20, 30), kernel(21, 31, device=3, number=2), call(1, 2)]
    devices = [{"id": 3, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0}, {"id": 0}]
    trace = opened(tmp_path / "x", text(events, deviceProperties=devices))
    assert list(trace.operations) == [RankKey(PID, 0), RankKey(PID, 3)]
    assert [trace.gpu_name(key) for key in trace.operations] == [None, "NVIDIA H100"]
    assert [trace.compute_capability(key) for key in trace.operations] == [None, (9, 0)]


def test_events_of_rocm_that_have_only_a_number(tmp_path: Path) -> None:
    """Process and thread are device and stream; the number is that of the call that launched."""
    number = {"External id": 25}
    launch = event("cuda_runtime", "hipExtModuleLaunchKernel", 1, 2, (PID, PID), **number)
    work = event("kernel", "Cijk_Ailk_Bljk_BBS", 20, 30, (2, 5), **number)
    trace = opened(tmp_path / "x", text([launch, work, kernel(60, 70, number=7)]))
    assert list(trace.operations) == [RankKey(PID, 0), RankKey(PID, 2)]
    kernels = trace.operations[RankKey(PID, 2)].kernels
    assert (kernels.stream.tolist(), kernels.correlation.tolist()) == ([5], [25])
    assert known(trace.api_calls(PID)).correlation.tolist() == [25]
    assert trace.notes == []


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("Memcpy HtoD (Pageable -> Device)",
         (CopyKind.HOST_TO_DEVICE, MemoryKind.PAGEABLE, MemoryKind.DEVICE)),
        ("Memcpy DtoH (Device -> Pinned)",
         (CopyKind.DEVICE_TO_HOST, MemoryKind.DEVICE, MemoryKind.PINNED)),
        ("Memcpy PtoP (Device -> Device)",
         (CopyKind.PEER_TO_PEER, MemoryKind.DEVICE, MemoryKind.DEVICE)),
        ("Memcpy DtoD", (CopyKind.DEVICE_TO_DEVICE, NULL, NULL)),
        ("Memset (Managed)", (NULL, NULL, MemoryKind.MANAGED)),
        ("Memcpy XtoY (Elsewhere -> Nowhere)", (CopyKind.UNKNOWN, NULL, NULL)),
        ("something else", (CopyKind.UNKNOWN, NULL, NULL)),
    ],
)  # fmt: skip
def test_copies_by_name(name: str, facts: tuple[int, int, int], tmp_path: Path) -> None:
    copy = event("gpu_memcpy", name, 1, 2, (0, 7), device=0, stream=7, correlation=1, bytes=99)
    copies = opened(tmp_path / "x", text([copy])).operations[RankKey(0, 0)].copies
    kinds = copies.kind[0], copies.source_memory[0], copies.destination_memory[0]
    assert (*map(int, kinds), int(copies.bytes[0])) == (*facts, 99)


_ALONE = {"fromDevice": 0, "toDevice": 3}


@pytest.mark.parametrize(
    ("args", "device", "ends"),
    [
        # Kineto writes "device" for copies of one GPU only, and these three for others.
        (_ALONE | {"inDevice": 0}, 0, (0, 3)),
        (_ALONE | {"inDevice": 3}, 3, (0, 3)),
        ({"fromDevice": "0", "inDevice": "3", "toDevice": "3"}, 3, (0, 3)),
        (_ALONE | {"device": 3}, 3, (0, 3)),
        ({"device": 3}, 3, (NULL, NULL)),
        ({"device": 3, "fromDevice": None, "toDevice": None}, 3, (NULL, NULL)),
        ({"inDevice": 0, "fromDevice": 0, "toDevice": -1}, 0, (0, NULL)),
        ({"inDevice": 0, "fromDevice": 4294967295, "toDevice": 0}, 0, (NULL, 0)),
        ({"inDevice": 1, "fromDevice": 1, "toDevice": 1}, 1, (1, 1)),
    ],
)  # fmt: skip
def test_copies_between_devices(
    args: dict[str, Any], device: int, ends: tuple[int, int], tmp_path: Path
) -> None:
    copies = [
        event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", start, 2, (device, 7),
              stream=7, correlation=start, bytes=99, **args)
        for start in (1, 5)
    ]  # fmt: skip
    load = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 3, 1, (device, 7), device=device)
    trace = opened(tmp_path / "x", text([*copies, load]))
    (read,) = (operations.copies for operations in trace.operations.values())
    assert list(trace.operations) == [RankKey(0, device)]
    assert read.source_device.tolist() == [ends[0], NULL, ends[0]]
    assert read.destination_device.tolist() == [ends[1], NULL, ends[1]]
    assert trace.notes == ["1 memory copy without a size: counted as 0 bytes"]


def test_a_copy_of_no_device_is_left_out(tmp_path: Path) -> None:
    copy = event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 1, 2, (0, 7), **_ALONE)
    trace = opened(tmp_path / "x", text([kernel(1, 2), copy]))
    assert len(trace.operations[RankKey(0, 0)].copies) == 0
    assert len(trace.notes) == 1


def test_waits_tell_what_recorded_their_event(tmp_path: Path) -> None:
    place = {"device": 0, "context": 1}
    wait = event(
        "cuda_sync", "Stream Wait Event", 30, 1, (0, 20), stream=20, correlation=9,
        wait_on_stream=7, wait_on_cuda_event_record_corr_id=5, wait_on_cuda_event_id=3, **place,
    )  # fmt: skip
    host = event("cuda_sync", "Context Sync", 40, 5, (0, -1), stream=-1, correlation=10, **place)
    record = call(20, 21, name="cudaEventRecord", number=5)
    trace = opened(tmp_path / "x", text([kernel(1, 2), record, wait, host]))
    waits, records = known(trace.synchronizations(PID)), known(trace.event_records(PID))
    assert waits.kind.tolist() == [2, 4]
    assert waits.stream.tolist() == [20, NULL]
    assert waits.event.tolist() == [3, NULL]
    assert waits.recording.tolist()[0] == records.recording.tolist()[0]
    columns = (records.asked_ns, records.stream, records.event, records.correlation)
    assert [column.tolist() for column in columns] == [[19_000], [7], [3], [5]]


def test_full_command_buffers(tmp_path: Path) -> None:
    stall = event("overhead", "Command Buffer Full", 5, 2.5, (PID, 1), correlation=4)
    later = event("overhead", "Command Buffer Full", 9, 1.5, (PID, 2), correlation=6)
    elsewhere = event("overhead", "Command Buffer Full", 7, 1, (PID + 1, 1), correlation=4)
    other = event("overhead", "Instrumentation", 6, 1, (PID, 1))
    trace = opened(tmp_path / "x", text([call(0, 1), later, elsewhere, stall, other]))
    stalls = known(trace.launch_stalls(PID))
    spans = stalls.start_ns.tolist(), stalls.end_ns.tolist()
    assert spans == ([5_000, 9_000], [7_500, 10_500])
    assert stalls.correlation.tolist() == [4, 6]
    assert opened(tmp_path / "y", text(EVENTS)).launch_stalls(PID) is None


def test_what_was_open_at_the_end_has_no_end(tmp_path: Path) -> None:
    events = [annotation("a", 1, 5), annotation("b", 2, 9, finished=False)]
    trace = opened(tmp_path / "x", text(events))
    table = trace.range_table(PID)
    assert table.end_ns.tolist() == [4_000, OPEN_END]
    assert trace.range_ends(PID)[0].tolist() == [4_000]
    assert trace.longest_ranges(1) == ["b"]


def test_instant_events_of_threads_are_marks(tmp_path: Path) -> None:
    events = [
        annotation("a", 1, 5),
        instant("out of memory", 3.25, cat="cpu_instant_event"),
        instant("[memory]", 2, cat="cpu_instant_event"),
        instant("saved", 0.5, place=(PID, 2)),
        instant("read", 4, cat="user_annotation", ph="I"),
        instant("Iteration Start: PyTorch Profiler", 1, s="g", place=("Traces", "Trace")),
        instant("Record Window End", 9, s="g", place=("", "")),
        instant("timeless", None),
    ]
    trace = opened(tmp_path / "x", text(events))
    marks = trace.marks(PID)
    found = as_rows(marks.time_ns, marks.name, marks.thread)
    # Times count from the first event that has a length.
    assert [(time, marks.names[name], thread) for time, name, thread in found] == [
        (-500, "saved", 2), (2250, "out of memory", 1), (3000, "read", 1),
    ]  # fmt: skip
    assert len(trace.marks(PID + 1)) == 0
    table = trace.range_table(PID)
    assert len(table) == 1
    assert trace.session.end_ns == 8000


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hipLaunchKernel", ApiCallKind.LAUNCH), ("hipExtModuleLaunchKernel", ApiCallKind.LAUNCH),
        ("hipMemcpyWithStream", ApiCallKind.COPY), ("hipHostMalloc", ApiCallKind.ALLOCATE),
        ("hipStreamWaitEvent", ApiCallKind.STREAM_WAIT),
        ("hipDeviceSynchronize", ApiCallKind.SYNCHRONIZE), ("hipEventQuery", ApiCallKind.OTHER),
    ],
)  # fmt: skip
def test_calls_of_rocm(name: str, kind: ApiCallKind) -> None:
    assert api_call_kind(name) is kind


def test_launches_of_rocm_that_have_an_address_as_stream_are_read(tmp_path: Path) -> None:
    launch = call(1, 2, name="hipLaunchKernel", number=5)
    launch["args"]["stream"] = "0x0"
    launched, other = kernel(3, 9, number=5, stream=0), kernel(9, 12, number=6)
    other["args"]["stream"] = "7"
    trace = opened(tmp_path / "x", text([launch, launched, other]))
    assert known(trace.api_calls(PID)).correlation.tolist() == [5]
    kernels = next(iter(trace.operations.values())).kernels
    assert kernels.packed_stream.values.tolist() == [0, 7]
    assert not trace.notes


@pytest.mark.parametrize(
    ("events", "how"),
    [
        ([call(1, 2)], "call torch.cuda.synchronize()"),
        ([call(1, 2), kernel(3, 9)], "torch.profiler.profile(activities="),
        ([annotation("ProfilerStep#3", 5, 50)], "torch.profiler.profile(activities="),
    ],
)
def test_how_operations_of_calls_are_recorded(
    events: list[dict[str, Any]], how: str, tmp_path: Path
) -> None:
    """Calls show that GPU activity was asked for: something else kept the operations out."""
    trace = opened(tmp_path / "x", text(events))
    assert trace.how_to_collect(Part.GPU_OPERATIONS).startswith(how)


def test_operators_and_functions_of_the_host(tmp_path: Path) -> None:
    place = PID, 1
    events = [
        kernel(20, 30),
        event("cpu_op", "aten::add", 12, 3, place, **{"External id": 7}),
        event("cpu_op", "aten::mul", 4, 5, place),
        event("python_function", "train.py(3): loop", 1, 39, place),
    ]
    trace = opened(tmp_path / "x", text(events))
    operators, functions = known(trace.operators(PID)), known(trace.python_functions(PID))
    names = [operators.names[name] for name in operators.packed_name.values.tolist()]
    assert names == ["aten::mul", "aten::add"]
    assert known(operators.external).values.tolist() == [NULL, 7]
    assert functions.external is None
    assert functions.length_ns.tolist() == [39_000]


def test_ranges_that_an_old_version_writes_as_operators(tmp_path: Path) -> None:
    """PyTorch 1.8 to 1.10 have no category of their own for `record_function`."""
    place = PID, 1
    ranges = [
        "ProfilerStep#5", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.zero_grad#SGD.zero_grad", "Optimizer.step#SGD.step",
        "DistributedDataParallel.forward",
    ]  # fmt: skip
    for category in ("Operator", "cpu_op"):
        events = [event(category, name, 2 + row, 1, place) for row, name in enumerate(ranges)]
        own = "aten::add", "AddBackward0"
        events += [event(category, name, 12 + 4 * row, 3, place) for row, name in enumerate(own)]
        trace = opened(tmp_path / category, text([kernel(20, 30), *events, annotation("a", 9, 10)]))
        table = trace.range_table(PID)
        assert [table.names[name] for name in table.name.tolist()] == [*ranges, "a"]
        operators = known(trace.operators(PID))
        names = [operators.names[name] for name in operators.packed_name.values.tolist()]
        assert names == [*own]


def test_an_accelerator_that_is_not_read_is_named(tmp_path: Path) -> None:
    """Ranges of `instrument` alone would make it a rank without a GPU, which it is not."""
    events = [annotation("all_reduce bytes=8 group=0 size=2", 1, 5), annotation("forward", 6, 9)]
    trace = opened(tmp_path / "x", text(events))
    assert [rank.device for rank in open_report(trace)] == [None]
    assert not trace.notes
    unread = [event("mtia_ccp_events", "matmul", start, 1, (0, 3)) for start in (2, 7)]
    trace = opened(tmp_path / "y", text([*events, *unread]))
    assert open_report(trace) == []
    (note,) = trace.notes
    assert "2 events of an accelerator (mtia_ccp_events) not read" in note
    assert ("mtia_ccp_events", 2) in {(table.name, table.num_rows) for table in trace.contents()}


def test_code_of_the_host_takes_24_bytes_an_event_at_most(tmp_path: Path) -> None:
    """Ids and times of a long recording, whose numbers are large, and shapes that vary."""
    num = 5_000
    events = [kernel(0, 1)]
    for row in range(num):
        place = PID, 40_000 + row % 70
        shape = [[512 + row % 300, 4096], [4096, 4096]]
        numbers = {"External id": 9_000_000 + 3 * row, "Sequence number": 7_000_000 + row}
        work = {"Input Dims": shape, "Input type": ["float", "float"]}
        start = row * 150.5
        events.append(event("cpu_op", "aten::mm", start, 99, place, **numbers, **work))
        events.append(event("python_function", f"a.py({row % 900}): f", start, 9, place))
    trace = open_trace(write(tmp_path / "t.json", events))
    for code in (trace.operators(PID), trace.python_functions(PID)):
        assert code is not None
        assert len(code) == num
        columns = [getattr(code, name) for name in code.__struct_fields__]
        packed = [column for column in columns if isinstance(column, Column)]
        assert len(packed) == (7 if code.sequence else 4)
        assert sum(column.nbytes for column in packed) <= 24 * num
        assert len(code.work) <= 301
    assert {one.name: one.num_rows for one in trace.contents()} == {
        "kernel": 1, "cpu_op": num, "python_function": num,
    }  # fmt: skip
    trace.close()
