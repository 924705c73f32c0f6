"""Where `-m instrument` goes in a command."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from traceprof.recording.job import read_command


@pytest.mark.parametrize(
    "command",
    [
        "python ^ train.py --lr 1",
        "python3.11 -u -X dev ^ train.py",
        "/opt/bin/python ^ -m pkg.train -m x",
        "torchrun --nproc-per-node 8 --standalone ^ train.py --nnodes 3",
        "torchrun --nnodes=2 -r3 --rdzv-backend c10d ^ train.py",
        "torchrun --nproc_per_node=2 ^ -m pkg.train a",
        "python -m torch.distributed.run --nproc-per-node 2 ^ train.py",
        "mpirun -np 4 -x PATH python ^ train.py",
        "./bind.sh python ^ train.py",
        "env A=1 python ^ train.py",
        "torchrun -m instrument train.py",
        "python -m instrument train.py",
        "accelerate launch --multi_gpu --num_processes 2 --debug ^ train.py --cpu",
        "accelerate-launch ^ -m pkg.train a",
        "python ^ -m train",
        "torchrun ^ train",
        "python -m accelerate.commands.launch --cpu --config_file a ^ train.py",
        "uv run torchrun ^ train.py",
        # There is no place for it:
        "torchrun --no-python ./train.sh",
        "python -c pass",
        "python",
        "python -m",
        "bash job.sh train.py",
        "accelerate test",
        "accelerate launch --no_python ./train.sh",
        "accelerate launch --unknown-flag train.py a",
        "accelerate launch -m --debug pkg.train",
        "accelerate launch -m",
        "accelerate launch",
        "torchrun --nnodes",
    ],
)
def test_instrument_is_put_before_the_script(command: str) -> None:
    """Its place is marked in commands that have one."""
    words = read_command(shlex.split(command.replace("^ ", ""))).instrumented()
    assert shlex.join(words) == command.replace("^", "-m instrument")


def test_module_is_the_long_name_of_m() -> None:
    words = read_command(["torchrun", "--module", "pkg.train", "a"]).instrumented()
    assert shlex.join(words) == "torchrun -m instrument -m pkg.train a"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("deepspeed --num_gpus 2 train.py a", "--num_gpus 2 --module instrument train.py a"),
        ("deepspeed --module pkg.train a", "--module instrument -m pkg.train a"),
        ("deepspeed --module instrument train.py", "--module instrument train.py"),
        ("deepspeed --no_python ./train.sh", "--no_python ./train.sh"),
    ],
)
def test_deepspeed_names_a_module_its_own_way(command: str, expected: str) -> None:
    assert shlex.join(read_command(command.split()).instrumented()) == f"deepspeed {expected}"


def test_the_folder_stands_where_the_module_would() -> None:
    for command in ("python train.py", "python -m instrument train.py"):
        own = replace(read_command(command.split()), package=Path("/x/instrument"))
        words = own.instrumented(["--gc"])
        assert shlex.join(words) == "python /x/instrument --gc train.py"


def test_options_are_those_of_instrument() -> None:
    for command in ("python train.py --steps 3", "python -m instrument train.py --steps 3"):
        words = read_command(command.split()).instrumented(["--steps", "1:2"])
        assert shlex.join(words) == "python -m instrument --steps 1:2 train.py --steps 3"


@pytest.mark.parametrize(
    ("command", "num_nodes", "node"),
    [
        ("torchrun --nnodes=2 --node-rank=1 train.py", 2, 1),
        ("torchrun --nnodes 4 --node_rank 0 train.py", 4, 0),
        ("torchrun --nnodes=1:4 train.py", None, None),
        ("torchrun train.py --nnodes 3", 1, None),
        ("accelerate launch --num_machines 2 --machine_rank 1 train.py", 2, 1),
        ("python train.py", None, None),
    ],
)
def test_nodes(command: str, num_nodes: int | None, node: int | None) -> None:
    read = read_command(command.split())
    assert (read.num_nodes, read.node) == (num_nodes, node)


def test_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "3")
    monkeypatch.setenv("PET_NODE_RANK", "2")
    read = read_command(["torchrun", "train.py"])
    assert (read.num_nodes, read.node) == (3, 2)


def test_mpi_is_seen() -> None:
    assert read_command(["mpirun", "-np", "2", "python", "a.py"]).uses_mpi
    assert not read_command(["torchrun", "a.py"]).uses_mpi
