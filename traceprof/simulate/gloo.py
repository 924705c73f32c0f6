"""Training without a GPU, simulated: pairs of ranks over Gloo, of which ever more work at once.

In step s the first s + 1 pairs train; each pair is a process group. Its ranks compute a forward,
reduce many small tensors one after the other, and reduce two gradient buckets in the backward: the
first is hidden, for the last one the backward waits. A small operation takes half as long again for
each other pair that works at the same time: that is what the pairs lose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof import labels
from traceprof.errors import UsageError
from traceprof.simulate.machine import TRACEPROF_DOMAIN, Rank, write_metadata
from traceprof.simulate.truth import SCHEMA
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.writer import NsightWriter

if TYPE_CHECKING:
    from pathlib import Path

_START_NS = 1_500_000_000
_US = 1_000
_LATENCY_NS = 160 * _US  # of a small operation of the only pair
_SMALL_BYTES, _BUCKET_BYTES = 400, 4 << 20
_FORWARD_NS, _OPTIMIZER_NS, _LOADING_NS = 3_000 * _US, 1_000 * _US, 500 * _US
_TO_BUCKET_NS = 4_000 * _US  # from the backward's start to its first bucket, and to the next
_FLIGHTS_NS = (2_000 * _US, 1_500 * _US)
_HOOK_NS, _CALL_NS, _COPY_BACK_NS = 5 * _US, 20 * _US, 30 * _US
_BETWEEN_NS = 2 * _US  # Python, from one call to the next
_LATER_NS = 3 * _US  # the second rank of a pair comes later
_STAGGER_NS = 20 * _US  # the pairs do not begin together
_JITTER = 0.02
_NUM_CORES = 2
_THREADS = ("python", "pt_gloo_runloop", "pt_gloo_runloop", "gloo_tcp_loop")
_MIN_OPERATIONS = 25  # of fewer a pair's median says nothing


@dataclass
class _Process:
    """What one rank does, as it is laid out.

    Attributes:
        rank: which it is.
        ranges: start, end, whether it was pushed, and text.
        steps: measures of each step, and when its range begins and ends.
        small_ns: durations of small operations, by the number of pairs that worked.
        sequence: calls of its group so far.
    """

    rank: Rank
    ranges: list[tuple[int, int, bool, str]] = field(default_factory=list)
    steps: list[dict[str, int]] = field(default_factory=list)
    small_ns: dict[int, list[int]] = field(default_factory=dict)
    sequence: int = 0

    def push(self, start: int, end: int, text: str) -> None:
        """Add a range that nests."""
        self.ranges.append((start, end, True, text))

    def fly(self, start: int, end: int, text: str) -> None:
        """Add a range that was started, and ended elsewhere."""
        self.ranges.append((start, end, False, text))

    def call(self, num_bytes: int) -> str:
        """Return the label of the next all-reduce of its group."""
        facts = {"bytes": num_bytes, "dtype": "float32", "group": 1 + self.rank.number // 2}
        facts |= {"rank": self.rank.number, "size": 2, "seq": self.sequence}
        self.sequence += 1
        return str(labels.Label("all_reduce", {name: str(each) for name, each in facts.items()}))


def simulate_gloo(path: Path, *, pairs: int = 4, operations: int = 30, seed: int = 0) -> Path:
    """Write the export of simulated pairs of ranks without a GPU, and the truth about it.

    Args:
        path: the export to write, such as `gloo.sqlite`; the truth goes to `gloo.truth.json`.
        pairs: of ranks, and steps, in each of which one pair more works.
        operations: small all-reduces of each pair in each step.
        seed: of the jitter. The same arguments make the same export.

    Returns:
        The path of the truth: the arguments, `breakdown` and `steps` as `traceprof analyze --format
        json` must find them, exactly, and `findings` with their metrics.

    Raises:
        UsageError: an argument is out of range, or one of the files is there already.
        TraceFileError: the disk is full.
    """
    for name, value, least in (
        ("pairs", pairs, 1), ("operations", operations, _MIN_OPERATIONS), ("seed", seed, 0)
    ):  # fmt: skip
        if value < least:
            raise UsageError(
                f"cannot simulate {name} {value}", f"the least is {least}", f"give {least} or more"
            )
    truth_path = path.with_suffix(".truth.json")
    if truth_path.exists():
        raise UsageError(
            f"cannot write {truth_path}", "it is there already", "choose another name, or remove it"
        )
    arguments = {"pairs": pairs, "operations": operations, "seed": seed}
    options = " ".join(f"--{name} {value}" for name, value in arguments.items())
    random = np.random.default_rng(seed)
    processes = [_Process(Rank(number)) for number in range(2 * pairs)]
    begin = _START_NS
    for step in range(pairs):
        begin = max(
            _train(processes[2 * pair : 2 * pair + 2], begin + _STAGGER_NS * pair, step, operations,
                   random)
            for pair in range(step + 1)
        )  # fmt: skip
    with NsightWriter(path) as writer:
        _write(writer, processes, f"traceprof simulate gloo {options}")
    document = {
        "schema": SCHEMA,
        "scenario": "gloo",
        "arguments": arguments,
        **_measured(processes),
        "findings": _findings(processes),
        "silent": [] if pairs > 1 else ["process-group-scaling"],
    }
    truth_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return truth_path


# -- the model ------------------------------------------------------------------------------------


def _train(
    pair: list[_Process], begin: int, step: int, operations: int, random: np.random.Generator
) -> int:
    """Lay out one step of one pair, and return when both ranks are through."""

    def varied(length_ns: int) -> int:
        return round(length_ns * (1 + random.uniform(-_JITTER, _JITTER)))

    loaded = begin + _LOADING_NS
    forward = [varied(_FORWARD_NS) for _ in pair]
    at = []
    for process, length in zip(pair, forward, strict=True):
        process.push(begin, loaded, labels.DATA_LOADING)
        process.push(loaded, loaded + length, labels.FORWARD)
        at.append(loaded + length)
    in_small = [0, 0]
    latency = _LATENCY_NS + _LATENCY_NS * step // 2
    for _ in range(operations):
        called = [at[0] + _BETWEEN_NS, at[1] + _BETWEEN_NS + _LATER_NS]
        over = max(called) + varied(latency)
        for number, process in enumerate(pair):
            process.push(called[number], over, process.call(_SMALL_BYTES))
            process.small_ns.setdefault(step + 1, []).append(over - called[number])
            in_small[number] += over - called[number]
        at = [over, over]
    backward = [at[0] + _BETWEEN_NS, at[1] + _BETWEEN_NS + _LATER_NS]
    flights = [[0, 0], [0, 0]]
    for bucket in (0, 1):
        ready = [each + varied(_TO_BUCKET_NS) * (bucket + 1) for each in backward]
        reduced = max(ready) + _HOOK_NS + varied(_FLIGHTS_NS[bucket])
        for number, process in enumerate(pair):
            text, called_ns = process.call(_BUCKET_BYTES), ready[number] + _HOOK_NS
            facts = f"index={bucket} bytes={_BUCKET_BYTES} dtype=float32 last={bucket}"
            process.fly(ready[number], reduced + _US, f"{labels.BUCKET} {facts}")
            process.push(called_ns, called_ns + _CALL_NS, text)
            process.fly(called_ns, reduced, text)
            flights[number][bucket] = reduced - called_ns
    over = reduced + _COPY_BACK_NS
    for number, process in enumerate(pair):
        process.push(backward[number], over, labels.BACKWARD)
        process.push(over, over + _OPTIMIZER_NS, labels.OPTIMIZER_STEP)
        process.push(loaded, over + _OPTIMIZER_NS, labels.step(step))
        hidden, exposed = flights[number]
        process.steps.append(
            {
                "step": step,
                "loading_ns": begin,
                "start_ns": loaded,
                "end_ns": over + _OPTIMIZER_NS,
                # All of the backward but the first call, and the wait for the last bucket.
                "compute_ns": forward[number] + over - backward[number] - _CALL_NS - exposed
                + _OPTIMIZER_NS,
                "communication_ns": in_small[number] + hidden + exposed,
                "overlapped_communication_ns": hidden - _CALL_NS,
                "num_communication": operations + 2,
            }
        )  # fmt: skip
    return over + _OPTIMIZER_NS + _STAGGER_NS


# -- the truth ------------------------------------------------------------------------------------


def _measured(processes: list[_Process]) -> dict[str, Any]:
    """Return `breakdown` and `steps` as the JSON report writes them."""
    breakdown, steps = [], []
    for process in processes:
        rank, rows = process.rank.number, process.steps
        starts = [row["start_ns"] for row in rows]
        ends = [*starts[1:], rows[-1]["end_ns"]]
        for row, start, end in zip(rows, starts, ends, strict=True):
            window = {"rank": rank, "step": row["step"], "start_ns": start, "end_ns": end}
            steps.append({**window, **_measures(row, end - start)})
        names = ("compute_ns", "communication_ns", "overlapped_communication_ns")
        total = {name: sum(row[name] for row in rows) for name in (*names, "num_communication")}
        first = rows[0]["loading_ns"]
        breakdown.append(
            {"rank": rank, "window_start_ns": first, **_measures(total, ends[-1] - first)}
        )
    return {"breakdown": breakdown, "steps": steps}


def _measures(row: dict[str, int], window_ns: int) -> dict[str, int]:
    exposed = row["communication_ns"] - row["overlapped_communication_ns"]
    return {
        "window_ns": window_ns,
        "compute_ns": row["compute_ns"],
        "communication_ns": row["communication_ns"],
        "overlapped_communication_ns": row["overlapped_communication_ns"],
        "exposed_communication_ns": exposed,
        "copy_ns": 0,
        "exposed_copy_ns": 0,
        "idle_ns": window_ns - row["compute_ns"] - exposed,
        "num_kernels": 0,
        "num_communication": row["num_communication"],
        "num_copies": 0,
    }


def _findings(processes: list[_Process]) -> list[dict[str, Any]]:
    """Return what many groups cost: most to the pair that never worked with fewer."""
    most = len(processes) // 2
    if most == 1:
        return []
    took: dict[int, list[int]] = {}
    for process in processes:
        for number, durations in process.small_ns.items():
            took.setdefault(number, []).extend(durations)
    per_group = [2 * sum(map(len, process.small_ns.values())) for process in processes[::2]]
    metrics = {
        "num_groups": most,
        "us_per_operation": median(took[most]) / _US,
        "growth": median(took[most]) / median(took[1]),
        "least_groups": 1,
        "us_per_operation_at_least": median(took[1]) / _US,
        "num_operations": sum(map(len, took.values())),
        "operations_per_group": int(median(per_group)),
        "num_processes": len(processes),
        "num_threads": len(_THREADS) * len(processes),
        "num_cores": _NUM_CORES,
        "coverage": 1.0,
    }
    # Of that pair, the rank that comes first waits for the other one.
    first_of_last = processes[-2].rank.number
    return [{"id": "process-group-scaling", "rank": first_of_last, "metrics": metrics}]


# -- the export -----------------------------------------------------------------------------------


def _write(writer: NsightWriter, processes: list[_Process], command: str) -> None:
    write_metadata(writer, command)
    cores = {"devStateName": "Local (CLI)", "name": "CpuCores", "value": str(_NUM_CORES)}
    writer.add(schema.SYSTEM_ENVIRONMENT, {"globalVid": schema.VM_ID, "nameEnum": 1, **cores})
    for process in processes:
        rank = process.rank
        writer.add(
            schema.PROCESSES, {"globalPid": rank.process, "pid": rank.pid, "name": ["python"]}
        )
        names = (*_THREADS, "[NSys]")
        writer.add(
            schema.THREAD_NAMES,
            {
                "nameId": [writer.string(name) for name in names],
                "priority": 20,
                "globalTid": [rank.main_thread + number for number in range(len(names))],
            },
        )
        domain = {"domainId": TRACEPROF_DOMAIN, "globalTid": rank.main_thread}
        writer.add(
            schema.NVTX.name,
            {**domain, "start": _US, "eventType": schema.NVTX_DOMAIN, "text": [labels.DOMAIN]},
        )
        start, end, is_pushed, text = zip(*process.ranges, strict=True)
        kinds = {True: schema.NVTX_PUSH_POP, False: schema.NVTX_START_END}
        writer.add(
            schema.NVTX.name,
            {
                **domain,
                "start": start,
                "end": end,
                "eventType": [kinds[each] for each in is_pushed],
                "textId": [writer.string(each) for each in text],
            },
        )
    end_ns = max(range_[1] for process in processes for range_ in process.ranges) + _US
    row = {"globalVid": schema.VM_ID, "duration": end_ns, "startTime": 0, "stopTime": end_ns}
    writer.add(schema.ANALYSIS_DETAILS, row)
