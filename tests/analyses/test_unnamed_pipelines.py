"""`--pipeline` on recordings whose sends and receives have no label, direction or peer."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Communicator
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.fleet import Node
from sample_traces.simulator.event_model.program_writer import Host, Rates
from sample_traces.simulator.profiler_traces import write_traces
from sample_traces.simulator.scenarios.pipelines import Plan, pipeline
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.changes import recorded
from tests.support.databases import change, query
from tests.support.long import long_after, rows_long_after
from tests.support.pipelines import bubbles, recorded_apart
from traceprof import Options
from traceprof.analyses.pipeline_bubble import ID, PARTS
from traceprof.analysis import Analysis, analyze
from traceprof.ranks.unnamed_messages import named
from traceprof.run.pipeline_orders import ORDERS

_TEXT = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
_MESSAGES = f"{_TEXT} GLOB 'send *' OR {_TEXT} GLOB 'recv *' OR {_TEXT} GLOB 'nccl*'"
_UNNAMED = "the bubbles of a pipeline cannot be measured: "


def _delete(path: Path, table: str, condition: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(f"DELETE FROM {table} WHERE {condition}").rowcount
        database.commit()
    return path


def _analysis(path: Path, *order: int) -> Analysis:
    pipelines = [order] if order else []
    return analyze(path, options=Options(only=[ID], savings=False, pipelines=pipelines))


def _reasons(path: Path, *order: int) -> list[str]:
    with closing(_analysis(path, *order)) as analysis:
        assert not analysis.findings
        return [gap.reason.removeprefix(_UNNAMED) for gap in analysis.not_applicable]


@pytest.mark.parametrize("num_stages", long_after(1, [2, 4, 8]))
@pytest.mark.parametrize("order", long_after(1, ["interleaved", "1f1b", "gpipe"]))
@pytest.mark.parametrize("is_prefetching", long_after(1, [False, True]))
def test_sends_without_labels_give_the_same_as_with_them(
    tmp_path: Path, order: str, num_stages: int, is_prefetching: bool
) -> None:
    work = (1.0, 1.4, *(1.0,) * (num_stages - 2))
    plan = Plan(
        order, num_stages, max(num_stages, 4), work, 2, 3_000_000, is_prefetching=is_prefetching
    )
    setup = pipeline(np.random.default_rng(0), plan)
    path, stages = recorded(setup, tmp_path / "run.sqlite"), range(num_stages)
    with closing(_analysis(path, *stages)) as analysis:
        with_labels = bubbles(analysis)
    with closing(_analysis(_delete(path, "NVTX_EVENTS", _MESSAGES), *stages)) as analysis:
        assert bubbles(analysis) == with_labels


@pytest.mark.parametrize("num_stages", long_after(1, [2, 4, 8]))
@pytest.mark.parametrize("order", long_after(1, ["1f1b", "gpipe", "interleaved"]))
def test_without_any_range_the_bubble_is_the_same(
    tmp_path: Path, order: str, num_stages: int
) -> None:
    plan = Plan(order, num_stages, max(num_stages, 4), num_steps=2)
    setup = pipeline(np.random.default_rng(1), plan)
    result = setup.run()
    truth = [finding["metrics"] for finding in setup.findings(Ranks(result))]
    path = _delete(recorded(setup, tmp_path / "run.sqlite", result), "NVTX_EVENTS", "TRUE")
    with closing(_analysis(path, *range(num_stages))) as analysis:
        found = bubbles(analysis)
    assert [one["bubble_ns"] for one in found] == [one["bubble_ns"] for one in truth]
    # What an equal stage computes is less certain where no range says what is a forward.
    tolerance = 0.16 if order == "interleaved" else 0.04
    for one, expected in zip(found, truth, strict=True):
        assert one["schedule"] == order
        assert one["num_micro_batches"] == plan.num_micro_batches
        assert one["num_chunks"] == plan.num_chunks
        assert one["ideal_fraction"] == expected["ideal_fraction"]
        for part in PARTS:
            assert one[part] == pytest.approx(expected[part], abs=tolerance * one["bubble_ns"])


@pytest.mark.long
def test_reports_of_machines_whose_clocks_differ(tmp_path: Path) -> None:
    plan = Plan("1f1b", 4, 4, (1.0, 1.3, 1.0, 1.0), 3)
    setup, rng = pipeline(np.random.default_rng(0), plan), np.random.default_rng(1)
    result = setup.run()
    nodes = (
        Node(f"node-{stage}", int(rng.integers(-(10**6), 10**6)), 0)
        for stage in range(plan.num_stages)
    )
    for path in recorded_apart(setup, result, tmp_path, nodes, rng):
        _delete(path, "NVTX_EVENTS", _MESSAGES)
    truth = [finding["metrics"] for finding in setup.findings(Ranks(result))]
    with closing(_analysis(tmp_path, 0, 1, 2, 3)) as analysis:
        found = bubbles(analysis)
    for one, expected in zip(found, truth, strict=True):
        for name in ("bubble_ns", *PARTS):
            assert one[name] == pytest.approx(expected[name], abs=0.03 * expected["bubble_ns"])


@pytest.mark.parametrize("num_stages", long_after(1, [4, 2]))
@pytest.mark.parametrize("style", long_after(1, ["by parity", "in one kernel"]))
def test_messages_as_megatron_orders_them(tmp_path: Path, num_stages: int, style: str) -> None:
    setup = _of_megatron(num_stages, 6, is_in_one=style == "in one kernel")
    path = recorded(setup, tmp_path / "run.sqlite")
    expected = _sides(path, num_stages)
    _delete(path, "NVTX_EVENTS", f"{_TEXT} NOT GLOB 'step *'")
    with closing(_analysis(path, *range(num_stages))) as analysis:
        measured = analysis.result.measured
        arrivals = [packed.unpacked for packed in measured.arrivals]
        by_order = named(measured.ranks, measured.passes, arrivals, [range(num_stages)])
    assert not by_order.reasons
    found = [
        [
            (int(one.direction[row]), int(one.peer[row]))
            for row in np.argsort(one.called_ns, kind="stable")
        ]
        for one in by_order.arrivals
    ]
    assert found == expected


def _of_megatron(num_stages: int, num_micro_batches: int, *, is_in_one: bool) -> Setup:
    """A 1F1B pipeline whose stages send and receive to the same neighbour at once, or in turns.

    What runs in one kernel is labelled `send+recv` here; no label is left when it is analysed.
    """
    rng = np.random.default_rng(0)
    hosts = tuple(Host(stage, rng, Rates(nccl=Fraction(60))) for stage in range(num_stages))
    for host in hosts:
        for step in range(3):
            with host.step(step):
                for kind, peer in _calls(host.process, num_stages, num_micro_batches, is_in_one):
                    if kind == "pass":
                        host.launch(host.compute, *(kernels.UP, kernels.DOWN, kernels.QKV)[:peer])
                    else:
                        _exchange(host, kind, peer, is_in_one=is_in_one)
                host.launch(host.compute, kernels.ADAM)
                host.synchronize(host.compute)
    return Setup(hosts, lambda _: [])


def _calls(
    stage: int, num_stages: int, num_micro_batches: int, is_in_one: bool
) -> Iterator[tuple[str, int]]:
    """Yield passes, with their kernels, and messages, with their peers, by hand."""
    last, sent = num_stages - 1, None
    for one in ORDERS["1f1b"](stage, num_stages, num_micro_batches):
        step = 1 if one.is_forward else -1
        source, destination = (
            other if 0 <= other <= last else None for other in (stage - step, stage + step)
        )
        if is_in_one and sent is not None and sent == source:
            yield "send+recv", sent
        else:
            # Megatron-LM: receive from before, send to after, receive from after, send to before
            # on odd stages; on even ones both pairs are the other way round.
            places = {
                ("send", stage + 1): 0, ("recv", stage - 1): 1,
                ("send", stage - 1): 2, ("recv", stage + 1): 3,
            }  # fmt: skip
            if stage % 2:
                places = {
                    ("recv", stage - 1): 0, ("send", stage + 1): 1,
                    ("recv", stage + 1): 2, ("send", stage - 1): 3,
                }  # fmt: skip
            messages = [("send", sent), ("recv", source)]
            known = [(kind, peer) for kind, peer in messages if peer is not None]
            yield from known if is_in_one else sorted(known, key=places.__getitem__)
        yield "pass", 1 if one.is_forward else 3
        sent = destination
    if sent is not None:
        yield "send", sent


def _exchange(host: Host, kind: str, peer: int, *, is_in_one: bool) -> None:
    low, high = sorted((host.process, peer))
    way = 0 if is_in_one else 1 + ((host.process == low) ^ (kind == "send"))
    group = Communicator(0x5EED + 64 * low + 4 * high + way, f"pp{low}{high}{way}", (low, high))
    stream = host.stream(24 + 8 * (peer > host.process) + 4 * (kind == "recv" and not is_in_one))
    with host.range(f"{kind} {peer}"):
        host.send_recv("send", peer, group, stream, 8 << 20, after=host.compute)
    if kind != "send":
        host.follow(host.compute, stream)


def _sides(path: Path, num_stages: int) -> list[list[tuple[int, int]]]:
    """Return direction and peer of each message of each stage, from the ranges of `_exchange`."""
    rows = query(path, f"SELECT globalTid, {_TEXT} FROM NVTX_EVENTS ORDER BY start")
    threads = sorted({thread for thread, _ in rows})
    assert len(threads) == num_stages
    numbers: dict[str, int] = {"send": 1, "recv": 2, "send+recv": 3}
    found: list[list[tuple[int, int]]] = [[] for _ in threads]
    for thread, text in rows:
        kind, _, peer = text.partition(" ")
        if kind in numbers and peer.isdigit():
            found[threads.index(thread)].append((numbers[kind], int(peer)))
    return found


def test_ranks_in_another_order_are_refused(tmp_path: Path) -> None:
    setup = pipeline(np.random.default_rng(0), Plan("1f1b", 4, 6, num_steps=2))
    path = _delete(recorded(setup, tmp_path / "run.sqlite"), "NVTX_EVENTS", _MESSAGES)
    assert "some end before they begin" in _reasons(path, 0, 2, 1, 3)[0]
    assert "none of the orders" in _reasons(path, 1, 0, 2, 3)[0]


@pytest.mark.parametrize("place", long_after(1, [7, 0, -1]))
def test_a_lost_message_is_refused(tmp_path: Path, place: int) -> None:
    setup = pipeline(np.random.default_rng(0), Plan("gpipe", 4, 4, num_steps=2))
    path = _delete(recorded(setup, tmp_path / "run.sqlite"), "NVTX_EVENTS", _MESSAGES)
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    rows = query(
        path,
        f"SELECT k.rowid FROM {table} k JOIN StringIds ON id = shortName"
        " WHERE value LIKE '%SendRecv%' ORDER BY start",
    )
    _delete(path, table, f"rowid = {rows[place][0]}")
    assert _reasons(path, 0, 1, 2, 3) == [
        "its sends and receives follow none of the orders GPipe, 1F1B and interleaved"
    ]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_solver_is_no_pipeline(tmp_path: Path, num_ranks: int) -> None:
    rng = np.random.default_rng(0)
    hosts = tuple(Host(rank, rng) for rank in range(num_ranks))
    for host in hosts:
        for step in range(6):
            with host.step(step):
                host.launch(host.compute, kernels.UP)
                for other in (host.process - 1, host.process + 1):
                    if 0 <= other < num_ranks:
                        _exchange(host, "send", other, is_in_one=False)
                for other in (host.process - 1, host.process + 1):
                    if 0 <= other < num_ranks:
                        _exchange(host, "recv", other, is_in_one=False)
                host.synchronize(host.compute)
    path = recorded(Setup(hosts, lambda _: []), tmp_path / "run.sqlite")
    _delete(path, "NVTX_EVENTS", "TRUE")
    assert "none of the orders" in _reasons(path, *range(num_ranks))[0]


def test_messages_without_any_time_of_their_own_are_refused(tmp_path: Path) -> None:
    """Both sides end at once in several orders, on one stream for each neighbour."""
    setup = pipeline(
        np.random.default_rng(0),
        Plan("1f1b", 2, 4, num_steps=2, rates=Rates(nccl=Fraction(10**9), nccl_latency_ns=1)),
    )
    path = _delete(recorded(setup, tmp_path / "run.sqlite"), "NVTX_EVENTS", _MESSAGES)
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 24 WHERE streamId IN (25, 26)")
    assert _reasons(path, 0, 1) == ["its sends and receives fit several orders equally well"]


@pytest.mark.parametrize(
    ("order", "num_stages"), rows_long_after(1, [("gpipe", 2), ("interleaved", 2), ("1f1b", 4)])
)
def test_traces_of_torch_profiler(tmp_path: Path, order: str, num_stages: int) -> None:
    """A trace for each rank: the same as in an export, if a label or PyTorch names the peers.

    Where neither does, ranks that are named are a pipeline, and others are not.
    """
    plan = Plan(order, num_stages, 4, (1.0, 1.3, *(1.0,) * (num_stages - 2)), 2)
    path = recorded(pipeline(np.random.default_rng(0), plan), tmp_path / "run.sqlite")
    with closing(_analysis(path)) as analysis:
        expected = bubbles(analysis)
    labels = f"{_TEXT} GLOB 'send *' OR {_TEXT} GLOB 'recv *'"
    for left_out in (None, labels, _MESSAGES):  # without labels `record_param_comms` are left
        if left_out is not None:
            _delete(path, "NVTX_EVENTS", left_out)
        folder = tmp_path / f"without {left_out and len(left_out)}"
        folder.mkdir()
        write_traces(path, folder, "run")
        for order_of in ((), range(num_stages)) if left_out == _MESSAGES else ((),):
            with closing(_analysis(folder, *order_of)) as analysis:
                assert bubbles(analysis) == (expected if order_of or left_out != _MESSAGES else [])
