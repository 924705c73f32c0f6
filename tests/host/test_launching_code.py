"""The code around the launches of kernels: operators, modules, lines of Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import astuple

from tests.reference.kineto import document as events_of
from tests.support.builders import TraceBuilder
from tests.support.changes import damaged
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.selection import long_after
from tests.support.traces import ranks_of
from traceprof.analyses.kernels import launched_kernels
from traceprof.analyses.kernels.launched_kernels import LaunchedKernels, Launcher
from traceprof.host.launching_code import launching_code
from traceprof.run.rank import Window


def operator(
    name: str, start: float, end: float, *, thread: int = 1, **args: Any
) -> dict[str, Any]:
    return event("cpu_op", name, start, end - start, (PID, thread), **args)


def function(name: str, start: float, end: float, *, thread: int = 1) -> dict[str, Any]:
    return event("python_function", name, start, end - start, (PID, thread))


def launched(path: Path) -> LaunchedKernels:
    with ranks_of(path) as (rank,):
        return launched_kernels.run(rank, rank.window)


def profile() -> list[dict[str, Any]]:
    """Launch a forward in two modules, and its backward from another thread.

    Net_0           0---------------------------------100
      Linear_0          10-------------40
        aten::linear       12--------38
          aten::addmm        15----35              (sequence 5, kernel `mm`)
      Linear_1                             50------80
        aten::addmm                          55--75  (sequence 6, kernel `mm`, then `bias`)
    thread 2: MmBackward0                               150----190  (sequence 5, kernel `grad`)
    """
    return [
        function("nn.Module: Net_0", 0, 100),
        function("/home/me/train/model.py(7): forward", 1, 99),
        function("nn.Module: Linear_0", 10, 40),
        function("/x/torch/nn/modules/linear.py(120): forward", 11, 39),
        operator("aten::linear", 12, 38),
        operator("aten::addmm", 15, 35, **{"Sequence number": 5}),
        function("nn.Module: Linear_1", 50, 80),
        operator("aten::addmm", 55, 75, **{"Sequence number": 6}),
        operator("autograd::engine::evaluate_function: AddmmBackward0", 150, 195, thread=2,
                 **{"Sequence number": 5}),
        operator("aten::mm", 160, 190, thread=2),
        call(20, 21, number=1), kernel(200, 210, name="mm", number=1),
        call(60, 61, number=2), kernel(210, 240, name="mm", number=2),
        call(62, 63, number=3), kernel(240, 245, name="bias", number=3),
        call(170, 171, number=4, thread=2), kernel(250, 290, name="grad", number=4),
        call(300, 301, number=5), kernel(310, 311, name="other", number=5),
    ]  # fmt: skip


def test_operator_module_and_line_of_each_kernel(tmp_path: Path) -> None:
    made = launched(write(tmp_path / "t.json", profile()))
    source = "train/model.py(7): forward"
    assert {name: astuple(launcher)[:3] for name, launcher in made.by_name.items()} == {
        "mm": ("aten::addmm", "Net_0.Linear_1", source),  # of most of its time
        "bias": ("aten::addmm", "Net_0.Linear_1", source),
        "grad": ("aten::mm", "Net_0.Linear_0", source),  # as the forward's operator
        "other": (None, None, None),
    }
    assert [astuple(use)[:5] for use in made.modules] == [
        ("Net_0", 85_000, 0, 40_000, 4),
        ("Net_0.Linear_0", 50_000, 50_000, 40_000, 2),
        ("Net_0.Linear_1", 35_000, 35_000, 0, 2),
    ]


def test_ranges_of_emit_nvtx_and_of_modules_are_read(tmp_path: Path) -> None:
    builder = TraceBuilder().nvtx("module net.mlp", 0, 100).nvtx("aten::mm, seq = 9", 10, 50)
    builder.nvtx("mine", 12, 48).kernel(300, 340, "gemm", launch=(20, 25))
    backward = "autograd::engine::evaluate_function: MmBackward0, seq = 9"
    builder.nvtx(backward, 400, 500, tid=2000).kernel(500, 560, "grad", launch=(450, 455), tid=2000)
    made = launched(builder.write(tmp_path))
    assert astuple(made.by_name["gemm"])[:3] == ("aten::mm", "net.mlp", None)
    assert astuple(made.by_name["grad"])[:3] == (backward.partition(",")[0], "net.mlp", None)
    assert [astuple(use)[:5] for use in made.modules] == [
        ("net", 100, 0, 60, 2),
        ("net.mlp", 100, 100, 60, 2),
    ]


def test_without_code_nothing_is_known(tmp_path: Path) -> None:
    made = launched(TraceBuilder().kernel(0, 10).nvtx("step 0", 0, 5).write(tmp_path))
    assert (made.by_name, made.modules) == ({}, ())
    assert made.of("gemm") == Launcher()
    path = write(tmp_path / "t.json", profile())
    with ranks_of(path) as (rank,):
        assert launched_kernels.run(rank, Window(5, 5)) == LaunchedKernels(0, {}, ())
    builder = TraceBuilder().nvtx("aten::mm", 10, 50).kernel(300, 340, "gemm", launch=(20, 25))
    path = builder.write(tmp_path / "with_calls.sqlite")
    assert damaged(path, tmp_path / "without.sqlite", "launch calls of a thread") == 1
    assert launched(tmp_path / "without.sqlite") == LaunchedKernels(0, {}, ())


# Of each, the least share of the time of kernels with an operator, and with a module.
REAL = {
    "TraceLens_sts_traces_mi300_ddp_resnet18_no_pool_train_resnet18": (1.0, 0.99),
    "noise/h100_a1.pt.trace": (1.0, 1.0),
    "b200_training_step": (1.0, 0.0),
    "h100_timesformer": (1.0, 1.0),
    "mi300_owlv2": (1.0, 1.0),
    "TraceLens_tests_traces_mi300_resnet_act_checkpoint": (0.6, 0.1),
}


@pytest.mark.parametrize("name", long_after(3, REAL))
def test_real_kernels_have_operators(traces: Path, name: str) -> None:
    with ranks_of(traces / "kineto" / f"{name}.json.gz") as (rank,):
        kernels = rank.operations.kernels
        code = launching_code(rank, np.arange(len(kernels)))
        assert code is not None
        length, correlation = kernels.length_ns, kernels.correlation.tolist()
    with_operator, with_module = (
        length[numbers >= 0].sum() / length.sum() for numbers in (code.operator, code.module)
    )
    assert with_operator >= REAL[name][0]
    assert with_module >= REAL[name][1]
    # The profiler's own ids say the same: those of operators, where kernels have them.
    events = events_of(traces / "kineto" / f"{name}.json.gz")["traceEvents"]
    ids = {one["args"].get("External id"): one["name"] for one in events
           if one.get("cat") == "cpu_op"}  # fmt: skip
    expected = {
        one["args"]["correlation"]: ids.get(one["args"].get("External id"))
        for one in events
        if one.get("cat") == "kernel"
    }
    if "noise" in name:  # its kernels have ids of something else
        return
    for number, index in zip(correlation, code.operator.tolist(), strict=True):
        assert expected[number] == (code.operators[index] if index >= 0 else None)
