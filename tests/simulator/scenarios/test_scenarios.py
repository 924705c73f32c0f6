"""Scenarios: each export holds what its truth says, in every schema version."""

import json
import struct
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import SCENARIOS, nsight_writer, simulate_scenario
from sample_traces.simulator.event_model.lost_time import IDLE_CAUSES
from tests.reference import exposed_communication
from tests.reference.breakdown import Measures, reference
from tests.reference.nsight_export import export_of
from tests.reference.training import training
from tests.support.databases import dump, query
from tests.support.recording import stats
from tests.support.selection import in_turn
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses.registry import FINDING_IDS
from traceprof.trace.nsight import schema

pytestmark = pytest.mark.slow

VERSIONS = tuple(nsight_writer.PRODUCTS)
LATEST = VERSIONS[-1]
Truth = dict[str, Any]

_SAMPLED = [name for name, scenario in SCENARIOS.items() if scenario.is_sample]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Truth]]:
    """Make each export once."""
    known: dict[tuple[str, str], tuple[Path, Truth]] = {}

    def make(name: str, version: str) -> tuple[Path, Truth]:
        if (name, version) not in known:
            path = tmp_path_factory.mktemp("scenario") / f"{name}.sqlite"
            truth = simulate_scenario(name, path, schema_version=version)
            known[name, version] = path, json.loads(truth.read_text())
        return known[name, version]

    return make


def without_losses(measures: Measures) -> Truth:
    """What a truth says of a window; nothing of a simulated run is lost."""
    values = asdict(measures)
    assert values.pop("lost_ns") == 0
    return values


@pytest.fixture(params=SCENARIOS)
def latest(request: pytest.FixtureRequest, made: Any) -> tuple[Path, Truth]:
    """Each scenario in the latest version."""
    run: tuple[Path, Truth] = made(request.param, LATEST)
    return run


def operations(path: Path) -> str:
    kinds = {schema.KERNEL.name, schema.MEMCPY.name, schema.MEMSET.name} & tables(path).keys()
    columns = "globalPid, deviceId, streamId, start, end, correlationId"
    return " UNION ALL ".join(f"SELECT {columns} FROM {kind}" for kind in sorted(kinds))


def tables(path: Path) -> dict[str, int]:
    names = [name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: query(path, f"SELECT count(*) FROM {name}")[0][0] for name in names}


def metrics(truth: Truth, finding: str, rank: int = 0) -> Truth:
    (found,) = [
        planted["metrics"]
        for planted in truth["findings"]
        if (planted["id"], planted["rank"]) == (finding, rank)
    ]
    values: Truth = found
    return values


@pytest.mark.parametrize(("name", "version"), in_turn(SCENARIOS, VERSIONS))
def test_truth_is_what_the_reference_measures(name: str, version: str, made: Any) -> None:
    path, truth = made(name, version)
    breakdown, steps = [], []
    for rank, found in enumerate(reference(path)):
        breakdown.append({"rank": rank, **without_losses(found.whole)})
        for step in found.steps:
            measures = without_losses(step.measures)
            start = measures.pop("window_start_ns")
            window = {"start_ns": start, "end_ns": start + measures["window_ns"]}
            steps.append({"rank": rank, "step": step.number, **window, **measures})
    assert truth["schema"] == "traceprof.truth/1"
    assert truth["scenario"] == name
    assert truth["arguments"] == {"seed": 0, "schema_version": version}
    assert truth["breakdown"] == breakdown
    assert truth["steps"] == steps


@pytest.mark.parametrize(("name", "version"), in_turn(SCENARIOS, VERSIONS))
def test_training_is_what_the_reference_finds(name: str, version: str, made: Any) -> None:
    path, truth = made(name, version)
    export = export_of(path)
    for expected, key in zip(truth["training"], sorted(export.ranks), strict=True):
        found = training(export, *key)
        spans = {"start_ns": found.start, "end_ns": found.end}
        around = {"before_ns": found.before_ns, "after_ns": found.after_ns}
        assert expected == {"rank": expected["rank"], **spans, **around}


CAUSES = {
    "host-sync": "sync_ns", "lost-run-ahead": "sync_ns", "launch-bound": "launch_bound_ns",
    "data-loading": "data_loading_ns", "sleeping-loader": "data_loading_ns",
    "sleeping-checkpoint": "waiting_ns", "mpi-wait": "mpi_ns", "initialisation": "setup_ns",
    "allocation-in-steps": "allocation_ns", "busy-python": "host_code_ns",
    "turnaround": "turnaround_ns", "host-stall": "stalled_ns",
}  # fmt: skip
REASONS = {
    "compute-stream-collective": "same_stream_ns",
    "exposed-late-launch": "late_launch_ns",
    "exposed-queued": "queued_ns",
    "exposed-needed-at-once": "needed_at_once_ns",
    "exposed-late-input": "late_input_ns",
    "exposed-waiting": "waiting_ns",
}


def test_every_cause_of_idle_time_has_a_scenario() -> None:
    assert {*CAUSES.values(), "unknown_ns"} == set(IDLE_CAUSES)


@pytest.mark.parametrize(("name", "cause"), CAUSES.items())
def test_idle_time_has_its_cause(name: str, cause: str, made: Any) -> None:
    _, truth = made(name, LATEST)
    idle = [finding["rank"] for finding in truth["findings"] if finding["id"] == "gpu-idle"]
    assert idle == ([1] if name == "host-stall" else [*range(len(truth["breakdown"]))])
    for rank in idle:
        breakdown, found = truth["breakdown"][rank], metrics(truth, "gpu-idle", rank)
        after_ns = 0 if truth["steps"] else truth["training"][rank]["after_ns"]
        assert 0 <= breakdown["idle_ns"] - found["idle_ns"] <= after_ns
        assert found["idle_ns"] > 0.05 * breakdown["window_ns"]
        assert found[cause] > 0.9 * found["idle_ns"]


def test_every_reason_of_exposed_communication_has_a_scenario() -> None:
    # Transfers longer than all compute have the programs of test_exposed_communication.
    assert {*REASONS.values(), "transfer_ns", "unknown_ns"} == set(exposed_communication.REASONS)


@pytest.mark.parametrize(("name", "reason"), REASONS.items())
def test_exposed_communication_has_its_reason(name: str, reason: str, made: Any) -> None:
    _, truth = made(name, LATEST)
    found = metrics(truth, "exposed-communication")
    window = truth["breakdown"][0]["window_ns"]
    assert found[reason] > 0.8 * found["exposed_ns"] > 0.05 * window


def test_a_program_of_mpi_is_not_one_of_torch(made: Any) -> None:
    for version in VERSIONS:
        path, _ = made("mpi-wait", version)
        assert query(path, "SELECT DISTINCT name FROM PROCESSES") == [("jacobi",)]
        assert query(path, "SELECT rank FROM MPI_RANKS ORDER BY rank") == [(0,), (1,)]
        assert schema.NVTX.name not in tables(path)
        rows = query(
            path,
            "SELECT value, count(*) FROM (SELECT textId FROM MPI_P2P_EVENTS UNION ALL"
            " SELECT textId FROM MPI_COLLECTIVES_EVENTS) JOIN StringIds ON id = textId GROUP BY 1",
        )
        assert rows == [("MPI_Allreduce", 40), ("MPI_Sendrecv", 40)]


def test_threads_are_off_the_cpu_while_they_sleep(made: Any) -> None:
    path, _ = made("sleeping-loader", LATEST)
    rows = query(path, "SELECT globalTid, isSchedIn, start FROM SCHED_EVENTS ORDER BY 1, 3")
    slept = [
        (after[2] - before[2], before[2])
        for before, after in pairwise(rows)
        if before[:2] == (after[0], 0)
    ]
    assert len(slept) == 2 * 6
    assert all(0.98 * 12_000_000 <= length <= 1.02 * 12_000_000 for length, _ in slept)
    # It sleeps inside a call of the operating system, and is not sampled meanwhile.
    calls = query(path, "SELECT start, end FROM OSRT_API ORDER BY globalTid, start")
    for (length, start), (began, ended) in zip(slept, calls, strict=True):
        assert began <= start
        assert start + length <= ended
        assert query(
            path,
            "SELECT count(*) FROM COMPOSITE_EVENTS AS s JOIN OSRT_API AS o USING (globalTid)"
            f" WHERE o.start = {began} AND s.start > {start} AND s.start < {start + length}",
        ) == [(0,)]


def test_samples_show_what_ran(made: Any) -> None:
    path, _ = made("busy-python", LATEST)
    counts = dict(
        query(
            path,
            "SELECT value, count(*) FROM SAMPLING_CALLCHAINS AS c JOIN StringIds AS s"
            " ON s.id = symbol WHERE stackDepth = 0 GROUP BY 1",
        )
    )
    # 5 ms in each of six steps of two ranks, a sample a millisecond
    assert counts["PyUnicode_Join"] == pytest.approx(60, abs=6)
    assert counts["PyDict_SetItem"] == pytest.approx(60, abs=6)


def test_a_run_with_everything_in_it(made: Any) -> None:
    path, truth = made("training", LATEST)
    windows = [row["window_ns"] for row in truth["breakdown"]]
    for rank, window in enumerate(windows):
        # Each costs enough to be told of, and no single one is the whole story.
        assert 0.05 < metrics(truth, "exposed-copy", rank)["exposed_ns"] / window < 0.15
        blocked = metrics(truth, "nccl-serialization", rank)
        assert blocked["blocked_ns"] == blocked["independent_blocked_ns"]
        assert 0.05 < blocked["blocked_ns"] / window < 0.15
        slowdown = metrics(truth, "overlap-slowdown", rank)
        assert slowdown["slowdown"] == pytest.approx(1.5, rel=0.02)
        assert 0.03 < slowdown["excess_ns"] / window < 0.1
    # In one step the loss is reduced late on rank 0, and rank 1 waits for it.
    first, second = (answer.reasons for answer in exposed_communication.reference(path).values())
    assert second["waiting_ns"] > 0.02 * windows[1] > 10 * (first["waiting_ns"] or 0)
    assert metrics(truth, "launch-queue-stall")["max_queue_depth"] == 1024
    assert len(truth["steps"]) == 2 * 4


def test_event_records_resolve_every_wait_of_a_stream(made: Any) -> None:
    path, _ = made("exposed-queued", LATEST)
    assert query(
        path,
        "SELECT count(*), count(record.eventId) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION AS wait"
        " LEFT JOIN CUPTI_ACTIVITY_KIND_CUDA_EVENT AS record USING (globalPid, eventId)"
        " WHERE syncType = 2",
    ) == [(2 * 6 * 3, 2 * 6 * 3)]


def test_full_precision_is_what_its_kernels_take(made: Any) -> None:
    for version in VERSIONS:
        path, truth = made("full-precision-matmul", version)
        for rank, (count, length) in enumerate(
            query(
                path,
                "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
                " JOIN StringIds ON id = shortName WHERE value LIKE 'ampere_sgemm%'"
                " GROUP BY globalPid ORDER BY globalPid",
            )
        ):
            found = metrics(truth, "full-precision-matmul", rank)
            assert (found["num_kernels"], found["kernel_ns"]) == (count, length)
            total = truth["breakdown"][rank]["compute_ns"]
            assert found["fraction"] == pytest.approx(length / total)


def test_findings_are_those_of_the_design(latest: tuple[Path, Truth]) -> None:
    _, truth = latest
    ids = {finding["id"] for finding in truth["findings"]}
    assert ids <= set(FINDING_IDS)
    assert ("only" in truth) != ("silent" in truth)
    listed = set(truth["only"] if "only" in truth else truth["silent"])
    assert listed <= set(FINDING_IDS)
    # A launch queue that is full, and the GPU's own time, are told of at info where all is well.
    if "healthy" not in truth["scenario"] and truth["scenario"] != "turnaround":
        assert ids <= listed if "only" in truth else not ids & listed


def test_streams_run_in_order(latest: tuple[Path, Truth]) -> None:
    path, _ = latest
    last: dict[tuple[int, int, int], tuple[int, int]] = {}
    for process, device, stream, start, end, call in query(
        path, f"{operations(path)} ORDER BY start"
    ):
        ended, launched = last.get((process, device, stream), (0, 0))
        assert ended < start < end
        assert launched < call
        last[process, device, stream] = (end, call)


def test_operations_start_after_their_call_began(latest: tuple[Path, Truth]) -> None:
    path, _ = latest
    late = query(
        path,
        f"SELECT o.start - call.start FROM ({operations(path)}) AS o"
        " LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON call.correlationId = o.correlationId"
        " AND call.globalTid - (call.globalTid & 0xFFFFFF) = o.globalPid",
    )
    assert all(wait is not None and wait > 0 for (wait,) in late)


def test_calls_and_ranges_of_a_thread_nest(latest: tuple[Path, Truth]) -> None:
    path, _ = latest
    open_ends: dict[int, list[int]] = {}
    spans = "SELECT globalTid, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    for table, condition in (
        ("NVTX_EVENTS", "eventType = 59"),
        ("OSRT_API", "1"),
        ("MPI_P2P_EVENTS", "1"),
    ):
        if table in tables(path):
            spans += f" UNION ALL SELECT globalTid, start, end FROM {table} WHERE {condition}"
    for thread, start, end in query(path, f"{spans} ORDER BY 2, 3 DESC"):
        ends = open_ends.setdefault(thread, [])
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or end <= ends[-1]
        ends.append(end)


@pytest.mark.parametrize("name", _SAMPLED)
def test_sample_is_what_the_simulation_makes(name: str, made: Any) -> None:
    path, truth = made(name, LATEST)
    sample = SAMPLE_FOLDER / path.name
    assert dump(path) == dump(sample)
    assert truth == json.loads(sample.with_suffix(".truth.json").read_text())


def test_samples_are_small() -> None:
    files = [file for kind in ("*.sqlite", "*.json") for file in SAMPLE_FOLDER.glob(kind)]
    assert sum(file.stat().st_size for file in files) < 6_000_000
    assert max(file.stat().st_size for file in files) < 300_000
    named = {file.name.partition(".")[0] for file in files} - {"ddp", "gloo"}
    assert named == set(_SAMPLED)


def test_every_sample_is_described() -> None:
    text = (SAMPLE_FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in text for name in SCENARIOS)


def test_healthy_is_healthy(made: Any) -> None:
    _, truth = made("healthy", LATEST)
    assert truth["findings"] == []
    assert truth["only"] == []
    for rank in truth["breakdown"]:
        assert rank["idle_ns"] < 0.005 * rank["window_ns"]
        assert rank["exposed_communication_ns"] < 0.002 * rank["window_ns"]


def test_second_sends_wait_for_the_first(made: Any) -> None:
    _, truth = made("nccl-serialization", LATEST)
    found = metrics(truth, "nccl-serialization")
    # 256 MiB at 235 GB/s behind the latency, in each of eight steps
    transfer = 12_000 + 256 * 2**20 / 235
    assert found["independent_blocked_ns"] == pytest.approx(8 * transfer, rel=0.02)
    assert found["num_blocked"] == 16
    assert metrics(truth, "nccl-serialization", 1)["independent_blocked_ns"] == 0


def test_kernels_are_slower_beside_nccl(made: Any) -> None:
    _, truth = made("overlap-slowdown", LATEST)
    for rank in (0, 1):
        found = metrics(truth, "overlap-slowdown", rank)
        assert found["slowdown"] == pytest.approx(1.5, rel=0.01)
        assert found["excess_ns"] == pytest.approx(found["model_excess_ns"], rel=0.02)


def test_stalls_lie_in_their_calls(made: Any) -> None:
    path, truth = made("launch-queue-stall", LATEST)
    found = metrics(truth, "launch-queue-stall")
    inside = query(
        path,
        "SELECT full.end - full.start, call.end - call.start FROM CUPTI_ACTIVITY_KIND_OVERHEAD"
        " AS full JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call USING (globalTid, correlationId)"
        " JOIN StringIds ON id = full.nameId WHERE value = 'Command Buffer Full'"
        " AND call.start < full.start AND full.end < call.end AND overheadType = 8",
    )
    assert len(inside) == found["num_stalls"] > 400
    assert sum(full for full, _ in inside) == found["stall_ns"]
    assert found["max_queue_depth"] == 1024
    assert found["source"] == "overhead-records"
    assert found["model_late_start_ns"] > 0.1 * truth["breakdown"][0]["window_ns"]
    # A launch is over soon after it has found room.
    assert all(call - full < 10_000 for full, call in inside)


@pytest.mark.long
def test_stalls_without_their_records(made: Any) -> None:
    name = "value = 'Command Buffer Full'"
    path, truth = made("launch-queue-stall-unexported", LATEST)
    assert metrics(truth, "launch-queue-stall")["source"] == "inferred"
    assert schema.OVERHEAD not in tables(path)
    assert query(path, f"SELECT count(*) FROM StringIds WHERE {name}") == [(1,)]
    path, truth = made("launch-queue-stall", "3.7.2")
    assert metrics(truth, "launch-queue-stall")["source"] == "inferred"
    assert schema.OVERHEAD not in tables(path)
    assert query(path, f"SELECT count(*) FROM StringIds WHERE {name}") == [(0,)]


def test_staged_copies_have_two_legs(made: Any) -> None:
    path, truth = made("peer-copy-through-host", LATEST)
    rows = query(
        path,
        "SELECT correlationId, group_concat(copyKind), min(srcKind = 2 AND dstKind = 2)"
        " FROM (SELECT * FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY start) GROUP BY correlationId",
    )
    assert {row[1:] for row in rows} == {("2,1", 1)}
    assert metrics(truth, "peer-copy-through-host")["gb_per_s"] == pytest.approx(12, rel=0.01)


def test_links_carry_what_copies_say(latest: tuple[Path, Truth]) -> None:
    path, truth = latest
    for kind, direction in ((1, "h2d"), (2, "d2h"), (10, "p2p")):
        rows = [link for link in truth["links"] if link["direction"] == direction]
        sizes = query(
            path,
            f"SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = {kind}"
            if schema.MEMCPY.name in tables(path)
            else "SELECT NULL",
        )
        assert sum(row["bytes"] for row in rows) == (sizes[0][0] or 0)


def test_nccl_is_slower_than_copies(made: Any) -> None:
    _, truth = made("p2p-slower-than-copy", LATEST)
    found = metrics(truth, "nccl-p2p-slower-than-copy")
    assert found["nccl_gb_per_s"] == pytest.approx(2.5, rel=0.01)
    assert found["copy_gb_per_s"] == pytest.approx(6.9, rel=0.01)


def test_payloads_tell_size_and_communicator(made: Any) -> None:
    path, _ = made("nccl-serialization", LATEST)
    rows = query(
        path,
        "SELECT value, binaryData, typeof(binaryData) FROM NVTX_EVENTS JOIN StringIds"
        " ON id = textId WHERE domainId = 1 AND binaryData IS NOT NULL",
    )
    assert len(rows) == 8 * (2 + 1 + 1 + 3 * 2)
    for name, data, kind in rows:
        assert kind == "blob"
        domain, _, number, _, size, total = struct.unpack_from("<IIIIQQ", data)
        assert (domain, 32 + size, total) == (1, len(data), len(data))
        communicator, message, third = struct.unpack_from("<QQi", data, 32)
        entries = query(
            path,
            "SELECT name, coalesce(offset, 0) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES"
            f" WHERE schemaId = {number} ORDER BY idx",
        )
        if name == "ncclAllReduce":
            assert entries[2] == ("Reduction operation", 16)
            assert (communicator & 0xFF, message, third) == (0x10, 64 << 20, 0)
        else:
            assert entries[2] == ("Peer rank", 16)
            assert communicator & 0xFF in (0x11, 0x12)
            assert (message, third) == (256 << 20, name == "ncclSend")


@pytest.mark.parametrize(
    ("name", "launching"),
    [("nccl-serialization", {"ncclGroupEnd"}), ("small-collectives", {"ncclAllReduce"})],
)
def test_ranges_around_the_launch_of_nccl(name: str, launching: set[str], made: Any) -> None:
    path, _ = made(name, LATEST)
    rows = query(
        path,
        "SELECT function.value FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call"
        " JOIN StringIds AS api ON api.id = nameId JOIN NVTX_EVENTS AS range"
        " ON range.globalTid = call.globalTid AND range.domainId = 1"
        " AND range.start <= call.start AND range.end >= call.end"
        " JOIN StringIds AS function ON function.id = textId"
        " WHERE api.value = 'cudaLaunchKernelExC_v11060'",
    )
    assert len(rows) > 20
    assert {value for (value,) in rows} == launching


def test_payloads_as_json(made: Any) -> None:
    path, _ = made("late-allreduce", LATEST)
    rows = query(
        path,
        "SELECT jsonText, binaryData FROM NVTX_EVENTS JOIN StringIds ON id = textId"
        " WHERE value = 'ncclAllReduce'",
    )
    assert len(rows) == 2 * 6
    for text, data in rows:
        assert data is None
        assert json.loads(text)["Message size [bytes]"] == 320 << 20


def test_old_exports_have_no_payloads(made: Any) -> None:
    path, _ = made("nccl-serialization", "3.7.2")
    assert schema.PAYLOAD_SCHEMAS not in tables(path)
    assert query(path, "SELECT count(*) FROM NVTX_EVENTS WHERE jsonText IS NOT NULL") == [(0,)]


def test_labels_tell_the_same(made: Any) -> None:
    path, _ = made("nccl-serialization", LATEST)
    labels = [text for (text,) in query(path, "SELECT value FROM StringIds")]
    assert "send dst=2 bytes=268435456 dtype=bfloat16 group=pp02 seq=3" in labels
    assert "all_reduce bytes=67108864 dtype=bfloat16 group=0 size=3 seq=0" in labels


@pytest.mark.parametrize("version", VERSIONS)
def test_counters_show_what_links_carried(version: str, made: Any) -> None:
    path, truth = made("link-counters", version)
    suffix = " [Throughput %]" if version == LATEST else ""
    for counter, link, direction in (
        ("NVLink TX Requests User Data", "nvlink", "tx"),
        ("PCIe RX Throughput", "pcie", "rx"),
    ):
        for rank in (0, 1):
            (row,) = [
                link_use
                for link_use in truth["links"]
                if (link_use["rank"], link_use["link"], link_use["direction"])
                == (rank, link, direction)
            ]
            ((percent, highest),) = query(
                path,
                "SELECT sum(value), max(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS"
                f" USING (typeId, metricId) WHERE metricName = '{counter}{suffix}'"
                f" AND typeId & 255 = {rank}",
            )
            carried = percent / 100 * row["peak_gb_per_s"] * 100_000
            assert carried == pytest.approx(row["bytes"], rel=0.02)
            assert highest == pytest.approx(100 * row["utilization"], abs=1)
    sent = query(path, "SELECT sum(value) FROM NET_NIC_METRIC WHERE metricsIdx = 0")
    (network,) = [
        link_use for link_use in truth["links"] if link_use.get("source") == "nic-metrics"
    ][:1]
    assert sent[0][0] == pytest.approx(network["bytes"], rel=0.01)
    assert query(path, "SELECT count(*) FROM GPU_METRICS WHERE value < 0") == [(2,)]


@pytest.mark.parametrize("version", VERSIONS[1:])  # nsys itself reads no schema before 3
def test_nsys_stats_reads_it(version: str, made: Any, nsys: str) -> None:
    path, truth = made("host-sync", version)
    parts = stats(nsys, path)
    busy = [
        sum(int(line.split(",")[1]) for line in part.splitlines()[2:] if line) for part in parts
    ]
    ranks = truth["breakdown"]
    # Kernels of one stream do not overlap each other.
    assert busy[0] == sum(rank["compute_ns"] + rank["communication_ns"] for rank in ranks)
    assert busy[2] == sum(rank["copy_ns"] for rank in ranks)
    assert "dataloader" not in parts[3]
    assert ":step 7" in parts[3]
