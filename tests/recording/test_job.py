"""Which part of a job a recorder is, and who of several analyses."""

import socket
from pathlib import Path

import pytest

from traceprof.recording import job as gathering
from traceprof.recording.job import Job, job_of, read_command

HOST = socket.gethostname()
SRUN = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"}


@pytest.mark.parametrize(
    ("environment", "command", "job"),
    [
        ({}, "torchrun train.py", Job(HOST)),
        ({}, "torchrun --nnodes 2 --node-rank 1 train.py", Job(HOST, None, 1, 2)),
        ({}, "torchrun --nnodes 2 train.py", Job(HOST, None, None, 2)),
        # srun, a task a rank, and a task a node; a batch script runs in no step
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "4"}, "python a.py", Job(HOST, 3, 3, 4, False)),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"},
            "torchrun --nnodes 2 a.py",
            Job(HOST, None, 1, 2),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NNODES": "2"}, "torchrun a.py", Job(HOST)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            "python a.py",
            Job(HOST, 5, 5, 8, True),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
            "python a.py",
            Job(HOST, 1, 1, 2, False),
        ),
    ],
)
def test_jobs(environment: dict[str, str], command: str, job: Job) -> None:
    read = read_command(command.split())
    assert job_of(environment, read) == job
    assert not read.uses_mpi
    assert read_command(["mpirun", "-np", "2", *command.split()]).uses_mpi


def test_names() -> None:
    assert Job("node7").name == "node7"
    assert Job("node7", 12, 12, 16).name == "node7-rank12"


def test_the_first_waits_for_all_and_analyses_what_they_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job("a", None, 0, 3), Job("b", None, 1, 3), Job("c", None, 2, 3)]
    for job in jobs:
        gathering.begin(tmp_path, job)
    said: list[str] = []

    def finish(job: Job) -> list[Path] | None:
        gathering.done(tmp_path, job, [tmp_path / f"{job.host}.sqlite"])
        return gathering.gather(tmp_path, job, [], was_ended=bool, say=said.append)

    others = iter(jobs[1:])  # one is done in each pause
    monkeypatch.setattr("time.sleep", lambda _: finish(next(others)))
    assert finish(jobs[0]) == [tmp_path / f"{host}.sqlite" for host in "abc"]
    assert said == [f"waiting for 2 other reports in {tmp_path}"]
    assert list(tmp_path.iterdir()) == []


def test_without_numbers_the_last_one_analyses(tmp_path: Path) -> None:
    jobs = [Job("a", None, None, 2), Job("b", None, None, 2)]
    results = []
    (tmp_path / "report.html").touch()
    for job in jobs:
        gathering.begin(tmp_path, job)
    for job in jobs:
        gathering.done(tmp_path, job, [tmp_path / job.host])
        results.append(gathering.gather(tmp_path, job, [], was_ended=bool, say=print))
    assert results == [None, [tmp_path / "a", tmp_path / "b"]]


def test_one_that_does_not_come_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_WAIT_ENDED_S", 0.0)
    job = Job("a", None, 0, 2)
    gathering.done(tmp_path, job, [tmp_path / "a"])
    said: list[str] = []
    reports = gathering.gather(tmp_path, job, [], was_ended=lambda: True, say=said.append)
    assert reports == [tmp_path / "a"]
    assert said[-1] == "1 of 2 reports did not come"


def test_what_an_earlier_job_said_is_forgotten(tmp_path: Path) -> None:
    job = Job("a", None, 1, 2)
    gathering.done(tmp_path, job, [tmp_path / "old"])
    gathering.begin(tmp_path, job)
    assert list(tmp_path.iterdir()) == []
