"""What columns of operations tell without being unpacked, and kernels without being picked out."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import TraceBuilder, global_pid
from traceprof.intervals import Int64
from traceprof.trace.columns import pack
from traceprof.trace.model.operations import Operations
from traceprof.trace.nsight import gpu, schema
from traceprof.trace.open import open_trace
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.read_columns import read_columns

NOTHING = pack(np.empty(0, np.int64))


def operations(starts: list[int], lengths: list[int]) -> Operations:
    return Operations(
        pack(np.array(starts, np.int64)), pack(np.array(lengths, np.int64)), NOTHING, NOTHING
    )


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90)), min_size=1, max_size=30),
    st.integers(1, 4000),
    st.integers(0, 60_000),
)
def test_who_ends_last(pairs: list[tuple[int, int]], repeats: int, one_length: int) -> None:
    starts, lengths = [], []
    for number in range(repeats):
        starts += sorted(start + 51 * number for start, _ in pairs)
        lengths += [length for _, length in pairs]
    starts, lengths = starts[:5000], lengths[:5000]
    lengths[one_length % len(lengths)] = one_length
    made = operations(starts, lengths)
    last = max(start + length for start, length in zip(starts, lengths, strict=True))
    assert made.last_end_ns == last
    assert made.last_end_ns == int(made.end_ns.max())  # from unpacked starts, too
    assert made.last_end_ns == last


@pytest.mark.parametrize("on_demand", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_ranks_whose_rows_stand_between_each_other(
    tmp_path: Path, num_ranks: int, on_demand: bool
) -> None:
    chosen, builder = Random(num_ranks), TraceBuilder()
    planted: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number in range(400):
        rank = chosen.randrange(num_ranks)
        key = (1000 + rank // 2, rank % 2)
        start = number // 3 * 10 - chosen.choice([0, 0, 0, 25]) + 100
        end = start + chosen.choice([0, 5, 40])
        builder.kernel(start, end, pid=key[0], device=key[1], correlation=number)
        planted.setdefault(key, []).append((start, end, number))
    builder.memcpy(5, 7, pid=999)  # of a rank without kernels
    with closing(open_trace(builder.write(tmp_path), kernels_on_demand=on_demand)) as trace:
        (copying, *found) = trace.operations.items()
        assert (trace.pid(copying[0].process), len(copying[1]), copying[1].span_ns) == (
            999,
            1,
            (5, 7),
        )
        assert len(copying[1].kernels) == 0
        assert [(trace.pid(key.process), key.device) for key, _ in found] == sorted(planted)
        for (_, operations), (_, rows) in zip(found, sorted(planted.items()), strict=True):
            rows.sort(key=lambda row: row[:2])
            assert len(operations) == len(rows)
            assert operations.starts_ns == [rows[0][0]]
            assert operations.span_ns == (rows[0][0], max(end for _, end, _ in rows))
            for _ in range(2):
                kernels = operations.kernels
                assert operations.kernels is kernels
                columns = (kernels.start_ns, kernels.end_ns, kernels.correlation)
                assert [*zip(*(column.tolist() for column in columns), strict=True)] == rows
                operations.release()
                assert operations.kernels is kernels  # one copy


@pytest.mark.parametrize("runs", [4, 200])
def test_an_outline_tells_what_the_whole_does(tmp_path: Path, runs: int) -> None:
    builder = TraceBuilder()
    for number in range(runs):
        name = f"kernel_{number % 5}"
        pid, device = 1000 + number % 3, number // 7 % 2
        builder.kernel(number, number + 9 - number % 4, name=name, pid=pid, device=device)
    unusable = {"deviceId": 0, "globalPid": global_pid(), "demangledName": 77_777}
    builder.raw(schema.KERNEL.name, start=8, end=3, **unusable)
    builder.raw(schema.KERNEL.name, start=None, end=3, **unusable)
    path = builder.write(tmp_path)
    with (
        closing(open_trace(path)) as whole,
        closing(open_trace(path, kernels_on_demand=True)) as outline,
    ):
        assert [*outline.operations] == [*whole.operations]
        for key, operations in outline.operations.items():
            expected = whole.operations[key]
            assert (len(operations), operations.span_ns) == (len(expected), expected.span_ns)
        assert outline.notes == whole.notes
        assert "2 rows of CUPTI_ACTIVITY_KIND_KERNEL" in outline.notes[0]
        assert outline.kernel_names == whole.kernel_names
        assert outline.contents() == whole.contents()
        for key, operations in outline.operations.items():  # now they are read
            expected = whole.operations[key]
            assert operations.kernels.name.tolist() == expected.kernels.name.tolist()
            assert operations.kernels.end_ns.tolist() == expected.kernels.end_ns.tolist()
        assert outline.signatures.shape.tolist() == whole.signatures.shape.tolist()


def test_an_outline_leaves_kernels_until_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TraceBuilder().kernel(3, 9).memcpy(1, 4).write(tmp_path)
    columns_read: list[set[str]] = []

    def watched(
        database: Database, table: str, columns: Sequence[str], **how: Any
    ) -> Iterator[dict[str, Int64]]:
        if table == schema.KERNEL.name and not how:
            columns_read.append({*columns})
        return read_columns(database, table, columns, **how)

    monkeypatch.setattr(gpu, "read_columns", watched)
    with closing(open_trace(path, kernels_on_demand=True)) as trace:
        (operations,) = trace.operations.values()
        assert operations.span_ns == (1, 9)
        assert columns_read == [{*gpu.NEEDED, "demangledName"}]
        assert operations.kernels.start_ns.tolist() == [3]
