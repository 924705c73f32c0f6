"""Copies through the host, and NCCL's sends against copy engines."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.reference.links import reference_staged
from tests.support.builders import TraceBuilder
from tests.support.claims import results_of
from tests.support.databases import change
from tests.support.kept_claims import Kept
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import peer_transfers
from traceprof.findings import Finding, Severity
from traceprof.run.opening import Window

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MIB = 1 << 20


results = partial(results_of, peer_transfers.run)


def judged(path: Path) -> list[Any]:
    return [finding for result in results(path) for finding in peer_transfers.findings(result)]


def assert_agreement(path: Path) -> None:
    expected = reference_staged(path)
    with ranks_of(path) as ranks:
        found = {}
        for rank in ranks:
            staged = peer_transfers.run(rank, rank.window).staged
            if staged is not None:
                numbers = staged.metrics
                found[rank.process, rank.device] = (
                    numbers.num_copies, numbers.bytes, numbers.busy_ns,
                    round(numbers.coverage * numbers.num_copies),
                )  # fmt: skip
                assert 0 <= numbers.exposed_ns <= rank.window.length_ns
    assert found == expected


def test_real_exports(real_trace: Path) -> None:
    assert_agreement(real_trace)
    assert not any(isinstance(claim, Finding) for claim in judged(real_trace))


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert_agreement(sample)


def staged(
    builder: TraceBuilder, start: int, correlation: int, source: int = 0, target: int = 1
) -> TraceBuilder:
    """Add the two legs of a copy of 1000 bytes, of 100 ns each."""
    for offset, kind, device in ((0, 2, source), (100, 1, target)):
        builder.raw(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=start + offset, end=start + offset + 100,
            deviceId=device, contextId=1, streamId=7, correlationId=correlation,
            globalPid=1 << 48 | 1000 << 24, bytes=1000, copyKind=kind, srcKind=2, dstKind=2,
        )  # fmt: skip
    return builder


def test_two_legs_are_one_copy(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 50).kernel(250, 300, device=1)
    path = staged(builder, 100, 77).write(tmp_path)
    assert_agreement(path)
    first, second = results(path)
    assert first.staged is not None
    numbers = first.staged.metrics
    assert (numbers.bytes, numbers.busy_ns, numbers.coverage) == (1000, 200, 1)
    assert second.staged is None  # the copy counts for the sender
    (finding,) = judged(path)
    # the sender's window ends with its leg, so that only that one costs it anything
    assert (finding.id, finding.impact_ns, finding.severity) == (
        "peer-copy-through-host",
        100,
        Severity.HIGH,
    )


@pytest.mark.parametrize(("missing", "found"), [(1, [(0, 1000, 0.0)]), (2, [])])
def test_a_leg_alone(tmp_path: Path, missing: int, found: list[tuple[int, int, float]]) -> None:
    """A copy is counted by its first leg, to the host."""
    builder = TraceBuilder().kernel(0, 50).kernel(0, 50, device=1)
    path = staged(builder, 100, 77).write(tmp_path)
    change(path, "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = ?", missing)
    assert_agreement(path)
    findings = judged(path)
    values = [(one.rank, one.metrics["bytes"], one.metrics["coverage"]) for one in findings]
    assert values == found


def test_random_legs(tmp_path: Path) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        builder = TraceBuilder().kernel(0, 10)
        for number in range(rng.randrange(1, 12)):
            source = rng.randrange(3)
            target = rng.choice([device for device in range(3) if device != source])
            staged(builder, rng.randrange(2000), 100 + number, source, target)
        for _ in range(5):
            start = rng.randrange(2000)
            builder.memcpy(start, start + 50, rng.choice(["HtoD", "DtoH", "PtoP"]))
            builder.kernel(start, start + rng.randrange(100), device=rng.randrange(3))
        assert_agreement(builder.write(tmp_path / f"{seed}.sqlite"))


def sending(durations: list[int], label: str = "send dst=1 bytes=4194304") -> TraceBuilder:
    """Return sends of 4 MiB that take so long, and one copy of the same way and size in 1 ms."""
    builder = TraceBuilder().gpu("NVIDIA GeForce RTX 3090").gpu("x", board=1, device=1, pid=2000)
    builder.kernel(0, 10, device=1, pid=2000)
    time = 1000
    for number, duration in enumerate(durations):
        builder.nvtx(f"{label} seq={number}", time, time + 50, domain="traceprof")
        builder.kernel(
            time + 100, time + 100 + duration, SEND, launch=(time + 10, time + 40), stream=9
        )
        time += 1000 + duration
    return builder.memcpy(time, time + 1_000_000, "PtoP", bytes=4 * MIB, source=0, destination=1)


def test_an_empty_window(tmp_path: Path) -> None:
    with ranks_of(staged(sending([2_000_000]), 100, 99).write(tmp_path)) as ranks:
        result = peer_transfers.run(ranks[0], Window(10, 10))
    assert (result.staged, result.comparisons, result.num_send_recv) == (None, (), 0)
    assert peer_transfers.findings(result) == []


def labelled(label: str) -> TraceBuilder:
    return sending([2_000_000], label)


def all_on_device_0() -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 10, pid=2000)
    builder.nvtx("send dst=1 bytes=4194304", 0, 50, domain="traceprof")
    builder.kernel(100, 2_000_000, SEND, launch=(10, 40))
    return builder.memcpy(2_000_000, 3_000_000, "PtoP", bytes=4 * MIB, source=0, destination=1)


LABELS = (
    *("isend dst=1 dtype=float32", "send bytes=4194304", "send dst=1 bytes=1000"),
    *("recv src=1 bytes=4194304", "all_reduce bytes=4194304"),
    "send dst=5 bytes=4194304",  # a rank of another report
)


PROGRAMS = {
    "hidden by the receiver's compute": staged(
        TraceBuilder().kernel(0, 50).kernel(90, 310, device=1), 100, 77
    ),
    "unknown memory": TraceBuilder()
    .memcpy(0, 10)
    .without("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind")
    .without("CUPTI_ACTIVITY_KIND_MEMCPY", "dstKind"),
    "slow sends": sending([3_000_000, 2_000_000, 4_000_000]),  # the second waited least
    "sends that wait": sending([30_000_000, 1_000_000]),
    "one label around two kernels": sending([2_000_000]).kernel(
        3_000_000, 5_000_000, SEND, launch=(1020, 1030), stream=9
    ),
    "queued before the capture": sending([2_000_000]).kernel(
        500, 900, SEND, launch=False, stream=9
    ),
    "all see device 0": all_on_device_0(),
    "no copy": TraceBuilder().kernel(0, 10, SEND),
    **{label: labelled(label) for label in LABELS},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    kept(judged(PROGRAMS[name].write(tmp_path)))
