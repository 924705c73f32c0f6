"""What ranks without a GPU communicate, DDP's buckets, and what many groups at once cost."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.builders import TraceBuilder
from tests.support.kept_claims import Kept
from tests.support.selection import long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.analyses import collectives, gradient_buckets, process_group_scaling
from traceprof.analyses.collectives import Signature
from traceprof.analyses.process_group_scaling import (
    MIN_OPERATIONS,
    MachineOperations,
    groups_at_once,
)
from traceprof.analysis import Options, analyze
from traceprof.findings import Finding, NotApplicable
from traceprof.reports import json as json_report
from traceprof.reports import text as text_report
from traceprof.run.rank import Window

MS = 1_000_000
FACTS = "dtype=float32 group=dp rank=0 size=4"


def of_two_groups() -> TraceBuilder:
    """Rates are as in nccl-tests: the sum of all ranks' parts, three of four are received."""
    builder = TraceBuilder()
    for seq in range(3):
        start = 10_000 * seq
        builder.label(f"all_reduce bytes=4000 {FACTS} seq={2 * seq}", start, start + 1000 * seq)
        facts = FACTS.replace("group=dp", "group=tp")
        builder.label(f"all_gather_single bytes=1000 {facts} seq={seq}", start, start + 2000)
    return builder.label("barrier group=dp rank=0 size=4 seq=9", 40_000, 41_000)


def between_peers() -> TraceBuilder:
    """How long one side was in its call is not how long the bytes travelled: there is no rate."""
    builder = TraceBuilder()
    for index, function in enumerate(("send dst=2", "isend dst=2", "send dst=3", "recv src=1")):
        start = 100 * index
        builder.label(f"{function} bytes=8 {FACTS} seq={index}", start, start + 10 + index)
    return builder


def of_unknown_size() -> TraceBuilder:
    """The rate is of those whose size is known; the root is no peer."""
    builder = TraceBuilder().label("broadcast_object_list src=0 group=0 rank=0 size=2 seq=0", 0, 9)
    return builder.label("broadcast src=0 bytes=8 group=0 rank=0 size=2 seq=1", 10, 19)


REDUCE, WAIT = f"all_reduce bytes=4000 {FACTS} seq=0", "wait op=all_reduce group=dp seq=0"


def rebuilt(builder: TraceBuilder) -> TraceBuilder:
    """DDP makes its buckets anew after the first step."""
    builder.label("step 0", 0, 10_000)
    builder.label("bucket index=0 bytes=800 last=1", 0, 100, in_flight=True)
    for step in range(1, 4):
        for index in (0, 1):
            start = 1000 * step + 100 * index
            text = f"bucket index={index} bytes=400 last={index}"
            builder.label(text, start, start + 10 * step + index, in_flight=True)
    return builder


def cut_buckets() -> TraceBuilder:
    builder = TraceBuilder().label("step 0", 0, 90).machine(end=100)
    builder.label("bucket index=0 bytes=4 last=0", 10, 100, in_flight=True)
    builder.label("bucket index=1 bytes=4 last=0", 10, 30, in_flight=True)
    builder.label("bucket index=1 bytes=4 last=1", 50, None, in_flight=True)
    # Without any fact: the user's own.
    return builder.label("bucket ready", 60, 70, in_flight=True)


LABELLED: dict[str, TraceBuilder] = {
    "operations of two groups": of_two_groups(),
    "sends and receives": between_peers(),
    "unknown sizes": of_unknown_size(),
    "a synchronous call": TraceBuilder().label(REDUCE, 0, 10),
    "a call whose end is not known": TraceBuilder().label(REDUCE, 0, 10).label(WAIT, 50, 60),
    "a call with a flight": TraceBuilder()
    .label(REDUCE, 0, 10)
    .label(REDUCE, 2, 100, in_flight=True)
    .label(WAIT, 50, 120),
    "a flight whose call was before": TraceBuilder().label(REDUCE, 5, 25, in_flight=True),
    "buckets": rebuilt(TraceBuilder()),
    "buckets beside a GPU": rebuilt(TraceBuilder().kernel(0, 10_000)),
    "buckets that the capture cut": cut_buckets(),
}


@pytest.mark.parametrize("name", LABELLED)
def test_labels(name: str, tmp_path: Path, kept: Kept) -> None:
    result = closed_analysis(LABELLED[name].write(tmp_path)).result
    kept([*result.collectives[0].uses, *result.measured.buckets[0].uses])


def test_only_operations_that_begin_in_the_window_count(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for seq in range(4):
        builder.label(f"all_reduce bytes=1 {FACTS} seq={seq}", 100 * seq, 100 * seq + 150, tid=seq)
    path = builder.write(tmp_path)
    (use,) = closed_analysis(path, time_range=(100, 300)).result.collectives[0].uses
    assert (use.count, use.total_ns) == (2, 300)


def test_groups_have_the_description_that_the_user_gave_them(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.label("all_reduce bytes=8 group=1 desc=tensor_parallel rank=0 size=2 seq=0", 0, 10)
    builder.label("all_reduce bytes=8 group=0 rank=0 size=2 seq=0", 20, 25)
    with closing(analyze(builder.write(tmp_path), options=Options(savings=False))) as analysis:
        described = [
            (use.communicator, use.description) for use in analysis.result.collectives[0].uses
        ]
        assert described == [("group 1", "tensor_parallel"), ("group 0", None)]
        groups = text_report.render(analysis.result, is_verbose=True)
        groups = groups.partition("Communication by process group")[2]
        document = json.loads(json_report.render(analysis.result))
    assert "1 (tensor_parallel) " in groups
    assert [use["description"] for use in document["collectives"]] == ["tensor_parallel", None]


def test_a_rank_with_a_gpu_is_refused(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 9).write(tmp_path)
    with ranks_of(path) as (rank,), pytest.raises(TypeError, match="rank 0 has a GPU"):
        collectives.process_groups(rank, rank.window)


def test_without_labels_there_are_no_buckets(tmp_path: Path) -> None:
    with ranks_of(TraceBuilder().kernel(0, 9).write(tmp_path)) as (rank,):
        assert gradient_buckets.run(rank, Window(0, 9)).uses == ()


def machine(rows: list[tuple[int, int, int]]) -> MachineOperations:
    start, end, group = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rows), np.int64)
    names = tuple(str(number) for number in range(int(group.max()) + 1))
    return MachineOperations(
        start, end, zeros, group, zeros, names, (Signature("AllReduce", 4, 2),)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, 10, 0)], [1]),
        ([(0, 10, 0), (5, 15, 0)], [1, 1]),  # one group, two ranks
        ([(0, 10, 0), (0, 10, 1)], [2, 2]),
        ([(0, 10, 0), (10, 20, 1)], [1, 1]),  # touching
        ([(0, 100, 0), (0, 60, 1)], [2, 2]),  # 1.6 on average
        ([(0, 100, 0), (0, 40, 1)], [1, 2]),  # 1.4
        ([(5, 5, 0), (0, 10, 1), (0, 10, 2)], [1, 2, 2]),  # without length it is not there
        ([(5, 5, 0)], [1]),
    ],
)
def test_groups_at_once(rows: list[tuple[int, int, int]], expected: list[int]) -> None:
    assert groups_at_once(machine(rows)).tolist() == expected


def pairs(
    builder: TraceBuilder, num_groups: int, took: int, *, start: int = 0, count: int = 100,
    size: int = 400, pid: int = 10, first_rank: int = 0,
) -> TraceBuilder:  # fmt: skip
    """Have pairs of ranks reduce small tensors at once, each operation this long, back to back."""
    for group in range(num_groups):
        for member in (0, 1):
            rank = first_rank + 2 * group + member
            for seq in range(count):
                begin = start + took * seq
                facts = f"bytes={size} group={group} rank={rank} size=2 seq={start // 10_000 + seq}"
                builder.label(f"all_reduce {facts}", begin, begin + took, pid=pid + rank)
    return builder


def phases(builder: TraceBuilder, *took: int) -> TraceBuilder:
    """Have one pair at work, then two, then three, each phase with its duration."""
    start = 0
    for index, length_ns in enumerate(took):
        pairs(builder, index + 1, length_ns, start=start)
        start += 100 * length_ns + 10_000
    return builder


def judged(*paths: Path, **options: Any) -> tuple[tuple[Finding, ...], tuple[NotApplicable, ...]]:
    analysis = closed_analysis(*paths, only=[process_group_scaling.ID], **options)
    return analysis.findings, analysis.not_applicable


@pytest.mark.parametrize("are_utc", long_after(1, [True, False]))
def test_reports_of_several_runs_on_one_machine(tmp_path: Path, are_utc: bool) -> None:
    paths = []
    for index, (num_groups, took) in enumerate(((1, 100_000), (4, 400_000))):
        began = 10**18 + index * 60_000 * MS
        builder = pairs(TraceBuilder(), num_groups, took, start=began if are_utc else 0)
        builder.machine(host="box", start_utc=began)
        if are_utc:
            builder.raw("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value="true")
        paths.append(builder.write(tmp_path / f"{num_groups}.sqlite"))
    (finding,), _ = judged(*paths)
    assert (finding.metrics["num_groups"], finding.metrics["growth"]) == (4, 4.0)
    assert finding.metrics["num_cores"] is None
    assert finding.metrics["num_threads"] is None
    assert finding.rank >= 2  # of the second run, whose window is all dear operations
    assert finding.impact_ns == 30 * MS


@pytest.mark.parametrize("hosts", [("a", "b"), (None, None)])
def test_reports_that_cannot_be_put_on_one_clock(
    tmp_path: Path, hosts: tuple[str | None, str | None]
) -> None:
    paths = []
    for index, host in enumerate(hosts):
        took = (index + 1) * 100_000
        builder = pairs(TraceBuilder(), 2 * index + 1, took, first_rank=2 * index)
        builder.machine(host=host, start_utc=10**18 + index if host else None)
        paths.append(builder.write(tmp_path / f"{index}.sqlite"))
    findings, (missing,) = judged(*paths)
    assert findings == ()
    assert "3 process groups communicate at once" in missing.reason


def more_and_more() -> TraceBuilder:
    """Ranks 4 and 5 are there in the third phase only, whose 50 ms are three fifths extra."""
    builder = phases(TraceBuilder(), 200_000, 300_000, 500_000)
    builder.machine(host="box", cores=2, start_utc=10**18)
    for rank in range(6):
        builder.threads("python", "pt_gloo_runloop", "gloo_tcp_loop", "[NSys]", pid=10 + rank)
    return builder


def beside_compute() -> TraceBuilder:
    builder = phases(TraceBuilder(), 200_000, 500_000)
    for rank in range(4):
        builder.label("backward", 0, 100 * MS, pid=10 + rank, tid=99)
    return builder


def without_groups() -> TraceBuilder:
    builder = TraceBuilder()
    for start in range(0, 100_000, 1000):
        builder.label(f"all_reduce bytes=4 rank=0 size=2 seq={start}", start, start + 900)
    return builder


def barriers() -> TraceBuilder:
    builder, start = TraceBuilder(), 0
    for num_groups, took in ((1, 100_000), (2, 300_000)):
        for seq in range(100):
            for group in range(num_groups):
                text = f"barrier group={group} rank={group} size=2 seq={start // 10_000 + seq}"
                builder.label(text, start + took * seq, start + took * (seq + 1), pid=10 + group)
        start += took * 101
    return builder


def larger_ones() -> TraceBuilder:
    """Another size is another signature."""
    return pairs(pairs(TraceBuilder(), 1, 100_000), 3, 900_000, start=20 * MS, size=4096)


PROGRAMS: dict[str, Callable[[], TraceBuilder]] = {
    "more and more groups": more_and_more,
    "barriers": barriers,
    "always as many groups": lambda: pairs(TraceBuilder(), 3, 100_000),
    "small and larger ones": larger_ones,
    "beside compute": beside_compute,
    "without groups": without_groups,
    "groups beside operations of no group": lambda: pairs(
        without_groups(), 3, 100_000, size=4, start=MS
    ),
    "one group": lambda: pairs(TraceBuilder(), 1, 100_000),
    "less than a fifth more": lambda: phases(TraceBuilder(), 200_000, 230_000),
    "cheaper": lambda: phases(TraceBuilder(), 300_000, 200_000),
    "too few to tell": lambda: pairs(TraceBuilder(), 3, 100_000, count=MIN_OPERATIONS // 6),
    "large ones share bandwidth": lambda: pairs(TraceBuilder(), 3, 100_000, size=1 << 20),
    "no communication": lambda: TraceBuilder().label("forward", 0, 9),
    "a GPU": lambda: TraceBuilder().kernel(0, 9),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    findings, missing = judged(PROGRAMS[name]().write(tmp_path))
    kept([*findings, *missing])


def test_only_operations_in_the_window_are_compared(tmp_path: Path, kept: Kept) -> None:
    path = phases(TraceBuilder(), 200_000, 500_000).write(tmp_path)
    kept(
        claim
        for start in (0, 20 * MS + 1)
        for claims in judged(path, time_range=(start, None))
        for claim in claims
    )
