"""Where `-m instrument` goes in a command, and what its Python is asked before anything starts."""

import gzip
import os
import shlex
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.commands import run
from tests.support.selection import long_after
from traceprof.errors import MissingExtraError, UsageError
from traceprof.recording.job import read_command
from traceprof.recording.training import PACKAGE, Training, ask, lack_of_instrument, question
from traceprof.version import __version__

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "unmarked.py"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give a Python with nothing installed, not even pip."""
    folder = tmp_path_factory.mktemp("environments") / "bare"
    venv.create(folder)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give a Python with torch and nvtx, and without traceprof."""
    folder = tmp_path_factory.mktemp("environments") / "with_torch"
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # What stands in this folder is found, but its own .pth files are not read.
    (packages / "others.pth").write_text(str(Path(torch.__file__).parents[1]))
    return str(folder / "bin" / "python")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run outside of the repository, whose packages a Python would find in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_what_a_python_answers(bare: str, with_torch: str) -> None:
    own = ask(read_command([sys.executable, "train.py"]), os.environ)
    assert own is not None
    assert (own.lacks_instrument, own.versions["torch"]) == ("", torch.__version__)
    assert str(own).startswith(f"{sys.executable} (Python {sys.version_info.major}.")
    empty = ask(read_command([bare, "-u", "train.py"]), os.environ)
    assert empty is not None
    assert empty.lacks_instrument == "traceprof is not installed there"
    assert {*empty.versions.values()} == {""}
    assert empty.install("nvtx") == f"uv pip install --python {bare} nvtx"
    other = ask(read_command([with_torch, "train.py"]), os.environ)
    assert other is not None
    assert other.lacks_instrument
    assert other.install("nvtx") == f"{with_torch} -m pip install nvtx"
    assert other.cuda == own.cuda


@pytest.mark.parametrize("tool", ["torch", "nsys"])
@pytest.mark.parametrize("option", [[], ["--dry-run"]], ids=["record", "dry run"])
@pytest.mark.usefixtures("nsys")
def test_nothing_starts_where_a_package_is_missing(
    tmp_path: Path, bare: str, tool: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["record", "--with", tool, "-o", str(tmp_path / "out"), *option, "--", bare, "train.py"]
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    package = {"torch": "torch", "nsys": "nvtx"}[tool]
    assert err.splitlines()[-1].startswith(f"traceprof: cannot record {bare}: it has no {package}")
    assert err.endswith(f"; uv pip install --python {bare} {package}\n")
    assert not (tmp_path / "out").exists()
    assert run("doctor", "--json", "--", bare, "train.py") == 2
    assert f"uv pip install --python {bare} nvtx" in capsys.readouterr().out


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.mark.parametrize("launcher", long_after(1, [(), TORCHRUN]), ids=["forked", "torchrun"])
def test_a_training_without_traceprof_is_recorded(
    tmp_path: Path,
    with_torch: str,
    launcher: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ("record", "--with", "torch", "--steps", "1:3", "-o", str(tmp_path), "--")
    assert run(*words, with_torch, *launcher, str(PROGRAM), "4", "0") == 0
    assert f"{with_torch}: traceprof is not installed there. The one of" in capfd.readouterr().err
    traces = [gzip.decompress(path.read_bytes()) for path in tmp_path.glob("*.pt.trace.json.gz")]
    assert [b'"all_reduce bytes=' in trace for trace in traces] == [True, True]  # our labels
    assert (tmp_path / "report.html").exists()


def test_a_package_of_the_same_name_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lack_of_instrument(str(PACKAGE / "__init__.py")) == ""
    (tmp_path / "instrument").mkdir()
    assert "overwritten or deleted" in lack_of_instrument("")  # a folder without __init__.py
    (tmp_path / "instrument" / "__init__.py").write_text("import time\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["--dry-run", "--with", "torch", "-o", str(tmp_path), "--", sys.executable, "train.py"]
    assert run("record", *words) == 0
    out, err = capsys.readouterr()
    assert "another package has overwritten or deleted the `instrument` of traceprof" in err
    assert f"{sys.executable} {PACKAGE} --with torch -o {tmp_path} train.py" in out


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("srun -N 2 {python} train.py", "{python}"),
        ("mpirun -np 2 -x PATH {python} -m torch.distributed.run train.py", "{python}"),
        ("uv run torchrun train.py", "uv run python"),
        ("mpirun -np 2 conda run -n a python3 train.py", "conda run -n a python3"),
        ("env A=1 {python} train.py", "env A=1 {python}"),
        ("docker run image python train.py", None),
        ("srun --container-image=a python train.py", None),
        ("bash job.sh", None),
    ],
)
def test_how_it_is_asked(command: str, expected: str | None) -> None:
    words = question(read_command(command.format(python=sys.executable).split()))
    assert words == (
        None if expected is None else (*expected.format(python=sys.executable).split(),)
    )


def test_a_python_that_cannot_be_used(tmp_path: Path) -> None:
    # `--dry-run` may write a script for another machine.
    assert ask(read_command(["python3.99", "train.py"]), os.environ) is None
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no libpython >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match=rf"cannot run {broken}: no libpython; check the command"):
        ask(read_command([str(broken), "train.py"]), os.environ)
    command = read_command(["python", "train.py"])
    origins = {"torch": "", "nvtx": "", "instrument": str(PACKAGE / "__init__.py")}
    with pytest.raises(UsageError, match=r"it is Python 3\.8\.1, and ranges need 3\.10"):
        [*Training("python", (3, 8, 1), origins).check(command, under_nsys=False)]
    versions = {"torch": "2.1.0", "traceprof": "0.0.1"}
    said = [*Training("python", (3, 12, 1), origins, versions).check(command, under_nsys=True)]
    assert said == [
        "ranges need torch 2.4 or later, and python has 2.1.0",
        f"python has traceprof 0.0.1, and this is {__version__}",
    ]
    no_script = read_command(["python", "-c", "pass"])
    missing = Training("python", (3, 12, 1), {"torch": "", "nvtx": ""})
    (note,) = missing.check(no_script, under_nsys=True)
    assert note.endswith("No ranges are recorded")
    with pytest.raises(UsageError, match="names no script"):
        [*missing.check(no_script, under_nsys=False)]


def test_a_missing_extra_is_installed_by_what_made_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    for file, expected in (
        ("pipx_metadata.json", "pipx install --force"),
        ("uv-receipt.toml", "uv tool install --force"),
    ):
        (tmp_path / file).touch()
        error = MissingExtraError.of("cannot write", "pyarrow", "export")
        assert error.remedy.startswith(f"run {expected} '.[export]' in the folder")


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


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("torchrun --module pkg.train a", "", "torchrun -m instrument -m pkg.train a"),
        # DeepSpeed names a module its own way.
        ("deepspeed --num_gpus 2 a.py b", "", "deepspeed --num_gpus 2 --module instrument a.py b"),
        ("deepspeed --module pkg a", "", "deepspeed --module instrument -m pkg a"),
        ("deepspeed --module instrument a.py", "", "deepspeed --module instrument a.py"),
        ("deepspeed --no_python ./train.sh", "", "deepspeed --no_python ./train.sh"),
        # Options are those of `instrument`.
        ("python a.py --steps 3", "--steps 1:2", "python -m instrument --steps 1:2 a.py --steps 3"),
        ("python -m instrument a.py --gc", "--gc", "python -m instrument --gc a.py --gc"),
    ],
)
def test_instrument_with_options_is_put_there(command: str, options: str, expected: str) -> None:
    words = read_command(command.split()).instrumented(options.split())
    assert shlex.join(words) == expected


def test_the_folder_stands_where_the_module_would() -> None:
    for command in ("python train.py", "python -m instrument train.py"):
        own = replace(read_command(command.split()), package=Path("/x/instrument"))
        words = own.instrumented(["--gc"])
        assert shlex.join(words) == "python /x/instrument --gc train.py"


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
