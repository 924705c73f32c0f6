"""Communication that waited in line: by hand, by the simulator's truth, by the reference."""

import random
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.reference import readiness
from tests.reference.communication import kernels_of, uses
from tests.support.builders import (
    ALL_REDUCE,
    SEND_RECV,
    TraceBuilder,
    call,
    label,
    prepare,
    record,
    wait,
)
from tests.support.claims import measured_numbers, only_finding, only_gap, results_of
from tests.support.selection import long_after
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import collectives, nccl_serialization
from traceprof.analyses.nccl_serialization import SerializationResult
from traceprof.findings import Finding, Severity
from traceprof.run.opening import Window

US, MS = 1_000, 1_000_000


results = partial(results_of, nccl_serialization.run)


def result(builder: TraceBuilder, tmp_path: Path, window: Window | None = None) -> Any:
    (found,) = results(builder.write(tmp_path), window)
    return found


def only(found: SerializationResult) -> Finding:
    return only_finding(nccl_serialization.findings(found))


def assert_agreement(path: Path, *, has_labels: bool = False) -> None:
    """Compare numbers of this analysis, and of `collectives`, with the reference.

    It reads no labels, which tell the number of ranks.
    """
    expected, whole = kernels_of(path), readiness.reference(path)
    with ranks_of(path) as ranks:
        for rank in ranks:
            kernels = expected.get((rank.pid, rank.key.device), [])
            window = rank.window
            for numbers, waits in (
                (nccl_serialization.run(rank, window), whole),
                (nccl_serialization.run(rank, _middle(window)), readiness.reference(
                    path, (_middle(window).start_ns, _middle(window).end_ns)
                )),
            ):  # fmt: skip
                if rank.device is not None:
                    reference = asdict(waits[rank.process, rank.device])
                    del reference["num_queued"]
                    assert measured_numbers(numbers, reference) == reference
            rows = [structs.asdict(use) for use in collectives.run(rank, window).uses]
            for row, other in zip(rows, uses(kernels), strict=True):
                for name in ("algbw_gb_per_s", "busbw_gb_per_s"):
                    rate, expected_rate = row.pop(name), other.pop(name)
                    if rate is None or expected_rate is None:
                        assert rate == expected_rate or has_labels
                    else:
                        assert rate == pytest.approx(expected_rate, rel=1e-12)
                # The rest is of the GPU's name, or of other ranks.
                assert {name: row[name] for name in other} == other


def _middle(window: Window) -> Window:
    third = window.length_ns // 3
    return Window(window.start_ns + third, window.end_ns - third)


def sends(*, communicators: tuple[int, int], peers: tuple[int, int]) -> TraceBuilder:
    """Launch two sends at once: the second waits 40 ms behind the first.

    first   |====|            10-50 ms, launched at 1
    second       |====|       50-90 ms, launched at 5
    compute |=====      ===|  10-30, 90-100
    """
    builder = prepare(TraceBuilder()).kernel(10 * MS, 30 * MS).kernel(90 * MS, 100 * MS)
    for index in range(2):
        host = (1 + 4 * index) * MS
        values = communicators[index], 64, peers[index]
        call(builder, "ncclSend", host - US, host + US, *values, schema=902)
        start = (10 + 40 * index) * MS
        builder.kernel(start, start + 40 * MS, SEND_RECV, launch=(host, host + 5), stream=20)
    return builder


@pytest.mark.parametrize(
    ("communicators", "peers", "independent_ms", "avoidable_ms", "said"),
    [
        (
            *((7, 8), (1, 1), 40, 20),  # 30-50 ms
            f"0x{8:016x} behind SendRecv to 1 in communicator 0x{7:016x} on stream 20",
        ),
        ((7, 7), (1, 2), 40, 20, "SendRecv to 2 behind SendRecv to 1 on stream 20"),
        ((7, 7), (1, 1), 0, 0, "order of their own communicator"),
    ],
)
def test_an_operation_waits_behind_another(
    tmp_path: Path,
    communicators: tuple[int, int],
    peers: tuple[int, int],
    independent_ms: int,
    avoidable_ms: int,
    said: str,
) -> None:
    found = result(sends(communicators=communicators, peers=peers), tmp_path)
    metrics, avoidable_ns = found.metrics, avoidable_ms * MS
    assert (metrics.num_blocked, metrics.coverage) == (1, 1.0)
    assert metrics.blocked_ns == metrics.max_blocked_ns == metrics.known_blocked_ns == 40 * MS
    assert metrics.independent_blocked_ns == independent_ms * MS
    assert found.avoidable_ns == found.independent_avoidable_ns == avoidable_ns
    finding = only(found)
    assert finding.severity == (Severity.MEDIUM if avoidable_ms else Severity.INFO)
    assert finding.impact_ns == avoidable_ns
    assert finding.impact_fraction == pytest.approx(avoidable_ms / 90)
    (evidence,) = finding.evidence
    assert (evidence.start_ns, evidence.end_ns) == (10 * MS, 50 * MS)
    assert said in f"{finding.title} {evidence.label}"


def test_groups_of_labels_tell_communicators_apart(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder(), schemas=())
    for index, group in enumerate(("0", "pp")):
        label(builder, f"all_reduce bytes=64 group={group} seq=1", index * MS, (index + 1) * MS)
        start, host = (10 + 40 * index) * MS, index * MS + US
        builder.kernel(start, start + 40 * MS, ALL_REDUCE, launch=(host, host), stream=20)
    found = result(builder, tmp_path)
    assert found.metrics.independent_blocked_ns == 40 * MS
    assert "AllReduce in group pp behind AllReduce in group 0" in found.chains[0].label


def test_dependence_unknown(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(10 * MS, 50 * MS, ALL_REDUCE, launch=(0, 1))
    builder.kernel(50 * MS, 90 * MS, ALL_REDUCE, launch=(2, 3))
    found = result(builder, tmp_path)
    assert (found.avoidable_ns, found.independent_avoidable_ns) == (40 * MS, 0)
    finding = only(found)
    assert (finding.severity, finding.impact_ns) == (Severity.INFO, 40 * MS)
    assert finding.metrics["independent_blocked_ns"] is None
    assert "the export does not show whether they depend" in finding.title
    assert "--include-blobs=true" in finding.advice[-2]
    assert "--cuda-event-trace=true" in finding.advice[-1]


@pytest.mark.parametrize("is_needed", [True, False])
def test_what_compute_needs_waits_behind_what_it_does_not(
    tmp_path: Path, *, is_needed: bool
) -> None:
    """Without labels and event records: a small reduction is launched after a large one.

    7   |##|            |####|        1, 2, 7, 9   or   |##||##############|    1, 2, 9
    20      |########|##|    |##|     2, 6, 7, 9, 10        |########|##|  |##|
    """
    builder = TraceBuilder()
    for step in range(8):
        at = step * 11 * MS
        builder.nvtx(f"step {step}", at, at + MS)
        builder.kernel(at + MS, at + 2 * MS, launch=(at + 1, at + 2))
        for place, (begin, end) in enumerate([(2, 6), (6, 7), (9, 10)]):
            call, start = at + 3 + 2 * place, at + begin * MS + 3
            builder.kernel(start, at + end * MS, ALL_REDUCE, launch=(call, call + 1), stream=20)
        begin = at + (7 if is_needed else 2) * MS + 1
        builder.kernel(begin, at + 9 * MS, launch=(at + 11, at + 12))
    found = result(builder, tmp_path)
    finding = only(found)
    assert finding.metrics["independent_blocked_ns"] is None
    if is_needed:
        assert found.needed_avoidable_ns == pytest.approx(8 * 4 * MS, rel=0.01)
        assert finding.severity is Severity.HIGH
        assert finding.title.endswith("behind operations that it did not need yet")
    else:
        assert (found.needed_avoidable_ns, finding.severity) == (0, Severity.INFO)


@pytest.mark.parametrize(("gap", "blocked"), [(0, 1), (20_000, 1), (20_001, 0), (-5, 1)])
def test_it_counts_only_what_follows_closely(tmp_path: Path, gap: int, blocked: int) -> None:
    builder = TraceBuilder().kernel(MS, 2 * MS, ALL_REDUCE, launch=(0, 1))
    builder.kernel(2 * MS + gap, 3 * MS, ALL_REDUCE, launch=(2, 3))
    assert result(builder, tmp_path).metrics.num_blocked == blocked


def test_a_wait_reaches_over_several_operations(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(6):  # all launched at once: the last waits behind five
        builder.kernel(100 + 10 * index, 110 + 10 * index, ALL_REDUCE, launch=(0, 105))
    found = result(builder, tmp_path)
    assert found.metrics.blocked_ns == 5 + 15 + 25 + 35 + 45
    assert (found.metrics.queued_ns, found.waited_ns, found.metrics.max_blocked_ns) == (125, 45, 45)
    (chain,) = found.chains
    assert (chain.start_ns, chain.end_ns) == (105, 150)
    assert chain.label == "AllReduce behind AllReduce behind 3 more behind AllReduce on stream 7"


def test_with_events_the_title_says_what_was_ready(tmp_path: Path) -> None:
    """The second is launched at 20, when the first runs, but its input ends at 150.

    7   |##compute#########|          ends at 150
    20       |####A####|####B####|    100, 200, 300
    """
    builder = TraceBuilder().kernel(50, 150, launch=(1, 2))
    builder.kernel(100, 200, ALL_REDUCE, launch=(5, 6), stream=20)
    builder.kernel(200, 300, ALL_REDUCE, launch=(18, 20), stream=20)
    wait(record(builder, 1, 7, 15), 1, 20, 16)
    finding = only(result(builder, tmp_path))
    assert (finding.metrics["blocked_ns"], finding.metrics["queued_ns"]) == (50, 100)
    assert "were ready and waited" in finding.title
    assert not any("--cuda-event-trace" in line for line in finding.advice)


def test_without_launches_nothing_can_be_said(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, ALL_REDUCE).kernel(100, 200, ALL_REDUCE)
    found = result(builder.without("CUPTI_ACTIVITY_KIND_RUNTIME"), tmp_path)
    missing = only_gap(nccl_serialization.findings(found))
    assert "--trace=cuda" in missing.how_to_collect


def test_without_communication_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert nccl_serialization.findings(result(TraceBuilder().kernel(0, 5), tmp_path)) == []


@pytest.mark.parametrize("kernel", [ALL_REDUCE, SEND_RECV])
def test_communication_on_the_compute_stream(tmp_path: Path, kernel: str) -> None:
    builder = TraceBuilder()
    for index in range(4):
        builder.kernel(100 * index, 100 * index + 60)
        builder.kernel(100 * index + 60, 100 * index + 100, kernel)
    builder.kernel(400, 410, ALL_REDUCE, stream=20)
    found = result(builder, tmp_path)
    assert (found.metrics.num_on_compute_stream, found.compute_streams) == (4, (7,))
    assert found.metrics.exposed_on_compute_stream_ns == 160
    finding = only(found)
    assert finding.severity == Severity.INFO
    assert "4 of 5 communication operations run on stream 7" in finding.title
    assert ("async_op=True" in finding.advice[0]) == (kernel == ALL_REDUCE)
    assert ("isend and irecv" in finding.advice[0]) == (kernel == SEND_RECV)
    name = "AllReduce" if kernel == ALL_REDUCE else "SendRecv"
    assert finding.evidence[0].label == f"{name} on stream 7, which computes"


def test_a_helper_kernel_makes_no_compute_stream(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 1, stream=20)
    for index in range(1, 20):
        builder.kernel(10 * index, 10 * index + 9, ALL_REDUCE, stream=20)
    assert result(builder, tmp_path).metrics.num_on_compute_stream == 0


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert_agreement(sample, has_labels=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(2, range(12)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    random_, has_events = random.Random(seed), seed % 2 == 1
    builder = prepare(TraceBuilder(), schemas=(901, 902, 903))
    call(builder, "ncclCommInitRank", 0, 1, 7, 4, 0, 0, schema=903)
    host, gpu = 10, {20: 50_000, 21: 60_000, 7: 10_000}
    for _ in range(random_.randrange(1, 25)):
        stream = random_.choice([20, 20, 21, 7])
        tid = random_.choice([1000, 1001])
        is_grouped, kernels = random_.random() < 0.6, []
        if is_grouped:
            call(builder, "ncclGroupStart", host, host + 1, tid=tid)
        for _ in range(random_.randrange(1, 4) if is_grouped else 1):
            host += 10
            communicator, size = random_.choice([7, 8]), random_.choice([64, 4096, 1 << 22])
            peer = random_.choice([1, 2])
            name = random_.choice(["AllReduce", "AllGather", "Send", "Recv"])
            exchanges = name in ("Send", "Recv")
            values = (communicator, size, peer) if exchanges else (communicator, size)
            said = () if random_.random() < 0.1 else values
            schema = 902 if exchanges else 901
            call(builder, f"nccl{name}", host, host + 8, *said, schema=schema, tid=tid)
            kernels.append(SEND_RECV if exchanges else ALL_REDUCE.replace("AllReduce", name))
        if is_grouped:
            host += 10
            call(builder, "ncclGroupEnd", host, host + 8, tid=tid)
            kernels = [
                kernel
                for kernel in dict.fromkeys(kernels)
                for _ in range(random_.choice([1, 1, 2]))
            ]
        for name in kernels:
            launch: Any = (host + 2, host + 4) if random_.random() < 0.9 else False
            start = max(gpu[stream] + random_.choice([0, 0, 15_000, 25_000]), host)
            gpu[stream] = start + random_.choice([0, 500, 40_000])
            builder.kernel(start, gpu[stream], name, launch=launch, stream=stream, tid=tid)
        if random_.random() < 0.5:
            builder.kernel(gpu[7], gpu[7] + 9_000, stream=7, tid=random_.choice([1000, 1001]))
            gpu[7] += 9_000
        if has_events and random_.random() < 0.7:
            event, streams = random_.randrange(3), random_.sample([7, 20, 21], 2)
            wait(record(builder, event, streams[0], host), event, streams[1], host + 1)
        host += random_.choice([20, 30_000])
    assert_agreement(builder.write(tmp_path))


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    assert_agreement(real_trace)
