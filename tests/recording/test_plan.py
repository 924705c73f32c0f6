"""The plan of a recording."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traceprof.errors import UsageError
from traceprof.recording.machine import Machine
from traceprof.recording.nsys import Nsys, parse_may_sample, parse_options
from traceprof.recording.plan import TORCH, Flags, choose_flags, make_plan

TRAIN = ["python", "train.py"]


def test_a_range_of_steps_is_passed_on(tmp_path: Path) -> None:
    plan = make_plan(TRAIN, tmp_path, {}, steps=":3", tool=TORCH)
    assert plan.words[-3:] == ("--steps", ":3", "train.py")
    assert plan.variables["TRACEPROF_RECORD_STEPS"] == ":3"
    with pytest.raises(UsageError, match="it is not a range of steps"):
        make_plan(TRAIN, tmp_path, {}, steps="5:5", tool=TORCH)


# Help texts of the form in which nsys prints them, with the options that matter.
OLD = """
usage: nsys profile [<args>] [application] [<application args>]

\t-c, --capture-range=

\t   Possible values are none, cudaProfilerApi, nvtx, hotkey.

\t--cuda-graph-trace=<granularity>[:<launch origin>]

\t   Possible values for <granularity> are 'graph' or 'node'.

\t--gpu-metrics-device=

\t   The option argument must be 'none' or one of GPU IDs reported
\t   by '--gpu-metrics-device=help' switch.

\t(Experimental) --ib-switch-metrics-device=<IB switch GUID>[,<IB switch GUID>...]

\t--nic-metrics=

\t   Possible values are 'true' or 'false'.
"""
NEW = """
usage: nsys profile [<args>] [application] [<application args>]

\t--cuda-event-trace=

\t   Possible values are 'true' or 'false'.

\t--cuda-graph-trace=<granularity>[:<launch origin>]

\t   Possible values for <granularity> are 'graph' or 'node'.

\t--gpu-metrics-devices=

\t   Possible values are 'none', 'cuda-visible', 'all' or GPU IDs.

\t--nic-metrics=

\t   Possible values are 'lf', 'hf', 'hf-via-dts' or 'none'.
"""
ANCIENT = "\nusage: nsys profile [<args>]\n\n\t-t, --trace=\n\n\t   Possible values are 'cuda'.\n"
NODE = Machine(has_gpu=True, may_count=True, may_sample=True, network_cards=("mlx5_0",))


def texts(manual: str, machine: Machine = NODE, **asked: bool) -> list[str]:
    return [flag.text for flag in chosen(manual, machine, **asked).flags]


def chosen(manual: str, machine: Machine = NODE, **asked: bool) -> Flags:
    given = {"uses_mpi": False, "has_steps": False, "is_first_here": True} | asked
    return choose_flags(parse_options(manual), machine, **given)


def test_options_are_read_from_the_help() -> None:
    assert list(parse_options(OLD)) == [
        "capture-range", "cuda-graph-trace", "gpu-metrics-device", "ib-switch-metrics-device",
        "nic-metrics",
    ]  # fmt: skip
    assert "'node'" in parse_options(OLD)["cuda-graph-trace"]
    assert parse_options("") == {}


@pytest.mark.parametrize(
    ("manual", "expected"),
    [
        (OLD, ["--gpu-metrics-device=all", "--nic-metrics=true"]),
        (NEW, ["--gpu-metrics-devices=cuda-visible", "--nic-metrics=lf"]),
        (ANCIENT, []),
    ],
)
def test_counters_by_version(manual: str, expected: list[str]) -> None:
    assert [text for text in texts(manual) if "metrics" in text] == expected
    assert ("--cuda-event-trace=true" in texts(manual)) == (manual is NEW)
    assert ("--cuda-graph-trace=node" in texts(manual)) == (manual is not ANCIENT)


@pytest.mark.parametrize("manual", [OLD, NEW, ANCIENT])
def test_graphs_as_a_whole(manual: str) -> None:
    flags = chosen(manual, whole_graphs=True)
    graphs = [flag.text for flag in flags.flags if "graph" in flag.text]
    assert graphs == ([] if manual is ANCIENT else ["--cuda-graph-trace=graph"])
    assert any("CUDA graphs" in left.what for left in flags.left_out) == bool(graphs)


def test_torch_profiler_records_no_graph_as_a_whole(tmp_path: Path) -> None:
    plan = make_plan(TRAIN, tmp_path, {}, tool=TORCH, whole_graphs=True)
    assert "torch.profiler records each kernel of a graph" in "".join(plan.notes)


def test_steps_are_timed_where_some_are_chosen(tmp_path: Path) -> None:
    def folder_of(**how: Any) -> str | None:
        plan = make_plan(TRAIN, tmp_path, {}, tool=TORCH, **how)
        return plan.variables.get("TRACEPROF_BASELINE_TO")

    assert folder_of(steps="10:20") == str(tmp_path)
    assert folder_of() is None
    assert folder_of(steps="10:20", baseline=False) is None


def test_a_watch_is_asked_for_by_variables(tmp_path: Path) -> None:
    plan = make_plan(TRAIN, tmp_path, {}, tool=TORCH, watch=50)
    names = ("TRACEPROF_WATCH", "TRACEPROF_WATCH_TO")
    assert [plan.variables[name] for name in names] == ["50", str(tmp_path / "watch.jsonl")]
    assert {*names}.isdisjoint(make_plan(TRAIN, tmp_path, {}, tool=TORCH).variables)


def test_counters_are_recorded_once_a_machine() -> None:
    assert not [text for text in texts(NEW, is_first_here=False) if "metrics" in text]


def test_what_the_system_does_not_permit_is_said() -> None:
    nothing = Machine(has_gpu=True, may_count=False, may_sample=False, network_cards=())
    flags = chosen(NEW, nothing)
    assert "--sample=none" in [flag.text for flag in flags.flags]
    assert "--cpuctxsw=none" in [flag.text for flag in flags.flags]
    why = {left.what: left.why for left in flags.left_out}
    assert "perf_event_paranoid" in why["whether the host slept or ran"]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in why["counters of the GPUs' links"]
    assert "no InfiniBand" in why["counters of the network cards"]
    no_gpu = chosen(NEW, replace(NODE, has_gpu=False))
    assert (
        "no NVIDIA driver"
        in {left.what: left.why for left in no_gpu.left_out}["counters of the GPUs' links"]
    )


def test_steps_and_mpi() -> None:
    assert texts(NEW, has_steps=True)[-3:] == [
        "--capture-range=nvtx",
        "--nvtx-capture=steps@traceprof-capture",
        "--capture-range-end=stop",
    ]
    assert not [text for text in texts(NEW) if "capture" in text]
    assert texts(NEW, uses_mpi=True)[0] == "--trace=cuda,nvtx,mpi"


def test_the_installed_nsys_has_the_flags(nsys: str) -> None:
    installed = Nsys(nsys)
    assert installed.version >= (2020,)
    options = installed.options
    for flag in choose_flags(
        options, NODE, uses_mpi=True, has_steps=True, is_first_here=True
    ).flags:
        assert flag.text.removeprefix("--").partition("=")[0] in options
    assert installed.may_sample in {True, False}


@pytest.mark.parametrize(
    ("said", "may_sample"),
    [
        ("CPU Profiling Environment (process-tree): OK\n", True),
        ("CPU Profiling Environment (process-tree): Fail\nRoot privilege: disabled\n", False),
        ("Timestamp counter supported: Yes\n", None),
    ],
)
def test_what_nsys_says_of_sampling(said: str, may_sample: bool | None) -> None:
    assert parse_may_sample(said) is may_sample
