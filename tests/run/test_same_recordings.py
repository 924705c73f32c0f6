"""Recordings that were given twice, and which reports are known to be of one machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import TraceBuilder
from tests.support.profiler_events import call, kernel, write
from tests.support.traces import closed_analysis
from traceprof.analysis import analyze
from traceprof.errors import UsageError
from traceprof.run.opening import open_run
from traceprof.trace.open import open_trace

_GPUS = [{"id": device, "name": "Tesla V100"} for device in range(4)]


def recording(path: Path, start_us: int, device: int = 0, **facts: Any) -> Path:
    """Write a trace of one kernel on a device."""
    events = [call(1, 2), kernel(start_us, start_us + 10, device=device)]
    return write(path, events, **facts)


def ranks(*of_files: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"distributedInfo": {"rank": rank, "world_size": size}} for rank, size in of_files]


def machines(paths: Sequence[Path]) -> list[str | None]:
    run = open_run([open_trace(path) for path in paths])
    try:
        return run.machines
    finally:
        run.close()


@pytest.mark.parametrize("is_changed", [False, True])
def test_one_recording_given_twice_is_refused(tmp_path: Path, *, is_changed: bool) -> None:
    """Also where its bytes differ, as after another export."""
    for name in ("a.sqlite", "b.sqlite"):
        builder = TraceBuilder().kernel(0, 90).kernel(200, 290)
        if is_changed and name == "b.sqlite":
            builder.raw("StringIds", id=90_000, value="another export")
        builder.write(tmp_path / name)
    with pytest.raises(UsageError, match=r"a\.sqlite and .*b\.sqlite are the same recording"):
        analyze(tmp_path / "a.sqlite", tmp_path / "b.sqlite")


@pytest.mark.parametrize(
    ("claims", "is_refused"),
    [
        ([(0, 2), (1, 2)], False),
        ([(1, 2), (1, 2)], True),
        ([(0, 8), (0, 8)], True),
        ([(0, 1), (0, 1)], False),  # each a run of its own, such as copies of a server
        ([(2, 8), (5, 8), (2, 8)], True),
    ],
)
def test_a_rank_that_two_reports_claim_is_refused(
    claims: list[tuple[int, int]], tmp_path: Path, *, is_refused: bool
) -> None:
    paths = [
        recording(tmp_path / f"part{index}.json", 10 + index, **facts)
        for index, facts in enumerate(ranks(*claims))
    ]
    if is_refused:
        with pytest.raises(UsageError, match=rf"part0.json and .*part{len(claims) - 1}.json"):
            analyze(*paths)
    else:
        assert len(analyze(*paths).run.ranks) == len(claims)


@pytest.mark.parametrize(
    ("devices", "gpus", "hosts", "expected"),
    [
        ([0, 1, 2, 3], _GPUS, [None] * 4, 1),
        ([0, 1, 0, 1], _GPUS, [None] * 4, None),  # two machines of which each runs two
        ([0, 0], _GPUS[:1], [None] * 2, None),  # each sees its own only
        ([0, 5], _GPUS, [None] * 2, None),
        ([0, 1], _GPUS, ["a", "b"], 2),
        ([0, 0], _GPUS, ["a", "a"], 1),
    ],
)
def test_machines(
    devices: list[int],
    gpus: list[dict[str, Any]],
    hosts: list[str | None],
    expected: int | None,
    tmp_path: Path,
) -> None:
    paths = [
        recording(
            tmp_path / f"{index}.json", 100 + index, device,
            deviceProperties=gpus, **({} if host is None else {"host_name": host}),
        )
        for index, (device, host) in enumerate(zip(devices, hosts, strict=True))
    ]  # fmt: skip
    found = machines(paths)
    assert (None if None in found else len(set(found))) == expected
    # Ranks are compared, and share cores, by the same machines.
    compared = closed_analysis(*paths).result.ranks.machines
    assert len(set(compared)) == (expected or len(paths))


@pytest.mark.long
def test_gpus_that_list_each_other_in_a_real_run(traces: Path) -> None:
    analysis = analyze(*sorted((traces / "kineto/dlrm_8ranks").glob("*.json.gz")))
    uses = [use for result in analysis.result.collectives for use in result.uses]
    assert {use.scope for use in uses} == {"intra-node"}
    assert {use.peak_gb_per_s for use in uses} == {150.0}  # of NVLink of a V100
    (late,) = (found for found in analysis.findings if found.id == "straggler")
    assert late.title.startswith("On the machine of these GPUs, it arrives ")


def test_amd_gpus_of_one_kind_have_its_name(tmp_path: Path) -> None:
    names = [{"id": device, "name": "AMD Instinct MI300X"} for device in (0, 1)]
    path = recording(tmp_path / "t.json", 100, device=9, deviceProperties=names)
    assert [rank.gpu for rank in analyze(path).run.ranks] == ["AMD Instinct MI300X"]
