"""Sampled counters of links: a GPU's NVLink and PCIe in percent of their peak, a NIC's rates."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from traceprof.intervals import Int64
from traceprof.trace.grouping import groups, is_in
from traceprof.trace.model.operations import (
    BYTES_PER_MS,
    CLOCK,
    HZ,
    PERCENT,
    Counters,
    LinkSamples,
    RankKey,
)
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import check_times
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

# Names of all versions without their unit: the first row of a link and direction that a GPU has
# counts, and its metrics are added up. Written data crosses the link as a request of the writer,
# read data as a response of the owner. Nsight's guide: read is received, written is sent.
_GPU_METRICS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("nvlink", "tx", ("nvlink tx requests user data", "nvlink tx responses user data")),
    ("nvlink", "tx", ("nvlink bytes transmitted",)),
    ("nvlink", "rx", ("nvlink rx requests user data", "nvlink rx responses user data")),
    ("nvlink", "rx", ("nvlink bytes received",)),
    ("pcie", "tx", ("pcie tx throughput",)),
    ("pcie", "tx", ("pcie write throughput",)),
    ("pcie", "rx", ("pcie rx throughput",)),
    ("pcie", "rx", ("pcie read throughput",)),
    (CLOCK, "", ("gpc clock frequency",)),
)
_UNIT = re.compile(r"\s*\[(?P<unit>[^]]*)\]\Z")
# IPoIB's bytes are among InfiniBand's own; packets and waits are no bytes.
_NIC_METRICS = {
    "ib: bytes sent": "tx",
    "ib: bytes received": "rx",
    "eth: bytes sent": "tx",
    "eth: bytes received": "rx",
}
_NIC_UNITS = ("bytes/ms", "b/ms")
_FULL = 100
_UNITS = ("Throughput %", "MHz")
_MIN_HZ = 1_000_000  # the values are in Hz, also where the unit says MHz
# Products of value and period then fit 64 bits; samples are less than eight seconds apart, and no
# NIC carries a terabyte per second.
_MAX_NS = 1 << 33
_MAX_BYTES_PER_MS = 1 << 30
# A period longer than this many usual ones is a gap: samples are missing.
_GAP = 2


def read_counters(database: Database, ranks: Sequence[RankKey]) -> Counters:
    """Read the sampled counters of links."""
    by_gpu, has_samples = _gpu_samples(database)
    nics = database.rows(schema.NIC_INFO, {"name": str})
    clocks = {
        gpu: series for gpu, of_gpu in by_gpu.items() for series in of_gpu if series.link == CLOCK
    }
    return Counters(
        by_gpu={
            gpu: links
            for gpu, of_gpu in by_gpu.items()
            if (links := tuple(series for series in of_gpu if series.link != CLOCK))
        },
        clocks=clocks,
        gpu_of_rank=_gpus_of_ranks(database, ranks),
        network=_nic_samples(database),
        nics=tuple(sorted({row["name"] for row in nics if row["name"]})),
        has_gpu_samples=has_samples,
    )


def _gpu_samples(database: Database) -> tuple[dict[int, tuple[LinkSamples, ...]], bool]:
    wanted = _gpu_metrics(database)
    by_key: dict[tuple[int, int], list[tuple[Int64, Int64]]] = defaultdict(list)
    has_samples = False
    if schema.GPU_METRICS in database.columns:
        columns = ("timestamp", "typeId", "metricId", "value")
        database.require(schema.GPU_METRICS, columns)
        expect_rows(database, [schema.GPU_METRICS])
        types, metrics = (
            np.array(sorted({key[part] for keys in wanted.values() for key in keys}), np.int64)
            for part in (0, 1)
        )
        clocks = [key[1] for (_, link, _), keys in wanted.items() if link == CLOCK for key in keys]
        for chunk in read_columns(database, schema.GPU_METRICS, columns):
            has_samples = True
            # Times before 0 are before the session, NULL is before 0, and so are overflowed clocks.
            is_clock = is_in(chunk["metricId"], clocks) & (chunk["value"] >= _MIN_HZ)
            kept = np.flatnonzero(
                (chunk["timestamp"] >= 0)
                & (chunk["value"] >= 0)
                & ((chunk["value"] <= _FULL) | is_clock)
                & is_in(chunk["typeId"], types)
                & is_in(chunk["metricId"], metrics)
            )
            time, value = chunk["timestamp"][kept], chunk["value"][kept]
            check_times(database, schema.GPU_METRICS, time, time)
            kind, metric = chunk["typeId"][kept], chunk["metricId"][kept]
            for rows in groups(kind, metric):
                key = int(kind[rows][0]), int(metric[rows][0])
                by_key[key].append((time[rows], value[rows]))
    samples: dict[int, list[LinkSamples]] = defaultdict(list)
    for (gpu, link, direction), keys in wanted.items():
        series = [_once_per_time(by_key[key]) for key in keys if key in by_key]
        if series:
            times, values = series[0]
            for other_times, other_values in series[1:]:  # added up at the times that all have
                times, here, there = np.intersect1d(
                    times, other_times, assume_unique=True, return_indices=True
                )
                values = values[here] + other_values[there]
            start, end, value = _periods(times, values)
            if len(start):
                unit = HZ if link == CLOCK else PERCENT
                samples[gpu].append(LinkSamples(link, direction, None, unit, start, end, value))
    return {gpu: tuple(series) for gpu, series in samples.items()}, has_samples


def _gpu_metrics(database: Database) -> dict[tuple[int, str, str], list[tuple[int, int]]]:
    """(typeId, metricId) of the metrics to add up, by GPU, link and direction."""
    kinds = {"typeId": int, "metricId": int, "metricName": str}
    names: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    for row in database.rows(schema.GPU_METRIC_NAMES, kinds):
        if None in row.values():
            continue
        match = _UNIT.search(row["metricName"])
        if match and match["unit"] not in _UNITS:
            continue
        name = _UNIT.sub("", row["metricName"]).strip().lower()
        names[row["typeId"]][name] = row["typeId"], row["metricId"]
    wanted: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    for type_id, of_type in sorted(names.items()):
        for link, direction, metrics in _GPU_METRICS:
            keys = [of_type[name] for name in metrics if name in of_type]
            place = schema.gpu_of_type(type_id), link, direction
            if keys and place not in wanted:
                wanted[place] = keys
    return wanted


def _gpus_of_ranks(database: Database, ranks: Sequence[RankKey]) -> dict[RankKey, int]:
    """Number of each rank's GPU; without a map only if ordinals are unambiguous."""
    rows = database.rows(schema.CUDA_DEVICES, {"gpuId": int, "cudaId": int, "pid": int})
    known = {(row["pid"], row["cudaId"]): row["gpuId"] for row in rows}
    if known:
        by_rank = {
            key: known.get((schema.pid_of_process(key.process), key.device)) for key in ranks
        }
        return {key: gpu for key, gpu in by_rank.items() if gpu is not None}
    boards = database.rows(schema.GPU_INFO, {"id": int, "smCount": int})
    ids = {row["id"] for row in boards if row["id"] is not None and row["smCount"] != 0}
    if len(ids) == 1:
        (only,) = ids
        return dict.fromkeys(ranks, only)
    # CUDA_VISIBLE_DEVICES may renumber them, but not if every board is in use by its number.
    return {key: key.device for key in ranks} if {key.device for key in ranks} == ids else {}


def _once_per_time(parts: Sequence[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
    """Times, ascending, and values; of several values at one time the largest."""
    times = np.concatenate([time for time, _ in parts])
    values = np.concatenate([value for _, value in parts])
    order = np.lexsort((values, times))
    times, values = times[order], values[order]
    last = np.append(times[1:] != times[:-1], np.ones(min(len(times), 1), np.bool_))
    return times[last], values[last]


def _periods(times: Int64, values: Int64) -> tuple[Int64, Int64, Int64]:
    """Start, end and value of the periods that end at these times.

    The first sample has none before it; one after a gap stands for the usual period at most.
    """
    if len(times) < 2:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    steps = np.diff(times)
    usual = np.sort(steps)[len(steps) // 2]
    lengths = np.concatenate((usual[np.newaxis], np.where(steps <= _GAP * usual, steps, usual)))
    short = lengths < _MAX_NS
    return (times - lengths)[short], times[short], values[short]


def _nic_samples(database: Database) -> tuple[LinkSamples, ...]:
    names = database.rows(
        schema.NIC_METRIC_NAMES, {"metricsListId": int, "metricsIdx": int, "name": str, "unit": str}
    )
    directions = {
        (row["metricsListId"], row["metricsIdx"]): _NIC_METRICS[row["name"].strip().lower()]
        for row in names
        if (row["name"] or "").strip().lower() in _NIC_METRICS
        and (row["unit"] or "").strip().lower() in _NIC_UNITS
    }
    if not directions or schema.NIC_METRICS not in database.columns:
        return ()
    required = ("start", "end", "globalId", "metricsListId", "metricsIdx", "value")
    database.require(schema.NIC_METRICS, required)
    keys = ("globalId", "metricsListId", "metricsIdx", "portId")  # ports only since 2025
    columns = [*required, *(["portId"] if database.has(schema.NIC_METRICS, "portId") else [])]
    expect_rows(database, [schema.NIC_METRICS])
    by_key: dict[tuple[int, ...], list[Int64]] = defaultdict(list)
    for chunk in read_columns(database, schema.NIC_METRICS, columns):
        start, end, value = chunk["start"], chunk["end"], chunk["value"]
        usable = (start >= 0) & (end > start) & (value >= 0) & (value < _MAX_BYTES_PER_MS)
        kept = np.flatnonzero(usable)
        check_times(database, schema.NIC_METRICS, start[kept], end[kept])
        kept = kept[end[kept] - start[kept] < _MAX_NS]
        of_rows = [chunk[name][kept] for name in keys if name in chunk]
        for rows in groups(*of_rows):
            key = tuple(int(row[rows][0]) for row in of_rows)
            by_key[key].append(np.stack((start, end, value))[:, kept[rows]])
    labels = _nic_names(database)
    samples = []
    for key, parts in sorted(by_key.items()):
        if key[1:3] not in directions:
            continue
        start, end, value = np.concatenate(parts, axis=1)
        order = np.lexsort((value, end, start))
        start, end, value = start[order], end[order], value[order]
        # Bytes in the overlap of two periods would count twice.
        start[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
        lasting = end > start
        name = labels.get(key[0], f"NIC {key[0]}")
        series = start[lasting], end[lasting], value[lasting]
        samples.append(
            LinkSamples("network", directions[key[1], key[2]], name, BYTES_PER_MS, *series)
        )
    return tuple(samples)


def _nic_names(database: Database) -> dict[int, str]:
    """Names of NICs by globalId: through NIC_ID_MAP, or their own column before 2023."""
    rows = database.rows(schema.NIC_INFO, {"globalId": int, "nicId": int, "name": str})
    by_nic = {row["nicId"]: row["name"] for row in rows if row["name"]}
    names = {row["globalId"]: row["name"] for row in rows if row["globalId"] and row["name"]}
    for row in database.rows(schema.NIC_IDS, {"nicId": int, "globalId": int}):
        if row["nicId"] in by_nic and row["globalId"] is not None:
            names[row["globalId"]] = by_nic[row["nicId"]]
    return names
