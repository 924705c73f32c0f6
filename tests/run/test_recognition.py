"""Which reports are of one run, and what numbers the ranks."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.builders import session
from traceprof.run.recognition import (
    ReportIdentity,
    choose_numbers,
    number_runs,
    program,
    rank_of_environment,
    rank_of_file,
)

S = 1_000_000_000


def report(
    start: int | None, *, host: str = "a", command: str = "python train.py", ids: str = ""
) -> ReportIdentity:
    captured = replace(session(host, start), command_line=tuple(command.split()))
    return ReportIdentity(Path("r.sqlite"), captured, S, 21 * S, set(ids.split()))


def test_reports_of_one_time_and_program_are_one_run() -> None:
    reports = [report(0), report(S, host="b", command="python train.py --local-rank 1")]
    assert number_runs(reports) == [0, 0]


def test_another_time_is_another_run() -> None:
    assert number_runs([report(0), report(3600 * S), report(S), report(3601 * S)]) == [0, 1, 0, 1]


def test_another_program_is_another_run() -> None:
    assert number_runs([report(0), report(0, command="python serve.py")]) == [0, 1]


def test_a_common_communicator_is_one_run_whatever_else_is_said() -> None:
    assert number_runs([report(0, ids="0x1"), report(3600 * S, ids="0x1 0x2")]) == [0, 0]
    assert number_runs([report(0, ids="0x1"), report(0, ids="0x2")]) == [0, 0]


def test_what_says_nothing_is_taken_for_one_run() -> None:
    assert number_runs([report(None), report(0)]) == [0, 0]
    assert number_runs([]) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/usr/bin/python3.11 -u train.py --lr 1", "train.py"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("./jacobi", "jacobi"),
        ("python", "python"),
        ("", None),
    ],
)
def test_the_program_of_a_command_line(words: str, expected: str | None) -> None:
    assert program(words.split()) == expected


def test_the_environment_tells_a_rank() -> None:
    assert rank_of_environment({"SLURM_PROCID": "5", "RANK": "3"}) == 3
    assert rank_of_environment({"RANK": "", "OMPI_COMM_WORLD_RANK": "7"}) == 7
    assert rank_of_environment({"RANK": "-1"}) is None
    assert rank_of_environment({}) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rank_3.sqlite", 3),
        ("run.rank12.sqlite", 12),
        ("Rank-0.sqlite", 0),
        ("report1.sqlite", None),
        # torchtitan, Megatron-LM, vLLM, SGLang
        ("rank3_trace.json.gz", 3),
        ("rank-3.json.gz", 3),
        ("9f1c-rank-3.1767189312.pt.trace.json.gz", 3),
        ("dp0_pp1_tp1_dcp0_ep1_rank3.1767189312.pt.trace.json.gz", 3),
        ("bs_8_rank3.json.gz", 3),
        ("1767189312.41-TP-3-EXTEND.trace.json.gz", 3),
        ("1767189312.41-TP-3-DP-1-PP-0-EP-3.trace.json.gz", 3),
        ("1767189312.41-TP-3-PP-1.trace.json.gz", None),
        ("HTTP-3.json", None),
    ],
)
def test_a_file_name_tells_a_rank(name: str, expected: int | None) -> None:
    assert rank_of_file(Path("rank_9") / name) == expected


def test_the_first_source_that_tells_all_apart_counts() -> None:
    sources: dict[str, list[int | None]] = {
        "nccl": [0, None, 2],
        "mpi": [1, 1, 2],
        "environment": [2, 0, 1],
    }
    assert choose_numbers(sources.items(), 3) == ([2, 0, 1], "environment")
    assert choose_numbers({"mpi": [None, None]}.items(), 2) == ([0, 1], "order")
    assert choose_numbers([], 0) == ([], "order")
