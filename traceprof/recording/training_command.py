"""The training command: the place for `-m instrument` in it, and the Python that runs it."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_MPI = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"}
_PYTHON_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}


class _Launcher(NamedTuple):
    """Options of a launcher, to be read up to the script; `_` in them is written `-`."""

    alone: frozenset[str]  # options without a value; all others have one
    num_nodes: tuple[str, str]  # the option for the number of nodes, and its default
    node: tuple[str, str]  # the same of this node's number
    # other versions have options that are unknown here, so that only a word that looks like a
    # script is one
    may_have_others: bool


_TORCHRUN = _Launcher(
    frozenset({"--standalone", "--no-python", "--run-path", "--use-env", "-h", "--help"}),
    ("--nnodes", "PET_NNODES"),
    ("--node-rank", "PET_NODE_RANK"),
    may_have_others=False,
)
_ACCELERATE = _Launcher(
    frozenset(
        {
            "--cpu", "--debug", "--downcast-bf16", "--dynamo-use-dynamic", "--dynamo-use-fullgraph",
            "--dynamo-use-regional-compilation", "--enable-cpu-affinity", "--fp16",
            "--fp8-use-autocast-during-eval", "--help", "--ipex", "--multi-gpu", "--no-python",
            "--no-tpu-cluster", "--quiet", "--same-network", "--tpu", "--tpu-cluster",
            "--tpu-use-sudo", "--use-deepspeed", "--use-fsdp", "--use-megatron-lm",
            "--use-mps-device", "--use-parallelism-config", "--use-xpu", "-h", "-q",
        }
    ),
    ("--num-machines", ""),
    ("--machine-rank", ""),
    may_have_others=True,
)  # fmt: skip
"""Of accelerate 1.15, and of older versions."""


@dataclass(frozen=True)
class TrainingCommand:
    """A command, taken apart."""

    words: tuple[str, ...]  # the command, as it was given
    # index of the word with which the Python script or `-m MODULE` begins; None if unknown, such
    # as for a shell script
    script: int | None
    python: str | None  # the Python that runs it, if known
    num_nodes: int | None = None  # torchrun's `--nnodes`; None if that is not one number
    node: int | None = None  # torchrun's `--node-rank`; None if not given
    uses_mpi: bool = False  # whether MPI starts it

    @property
    def is_instrumented(self) -> bool:
        """The presence of `-m instrument` in the command."""
        script = self.script
        return script is not None and self.words[script : script + 2] == ("-m", "instrument")

    def instrumented(self, options: Sequence[str] = ()) -> list[str]:
        """Return the command with `-m instrument` before the script.

        A command without a place for it, or that has it already, is unchanged.
        """
        words = list(self.words)
        if self.script is None:
            return words
        if self.is_instrumented:
            return [*words[: self.script + 2], *options, *words[self.script + 2 :]]
        return [*words[: self.script], "-m", "instrument", *options, *words[self.script :]]


def read_command(words: Sequence[str]) -> TrainingCommand:
    """Read a command: Python, torchrun or accelerate, perhaps with mpirun or srun before it."""
    uses_mpi = bool(words) and Path(words[0]).name in _MPI
    for i, word in enumerate(words):
        name = Path(word).name
        if _PYTHON.match(name):
            return _python(words, i, uses_mpi)
        if name == "torchrun":
            return _launched(_TORCHRUN, words, i + 1, _interpreter_of(word), uses_mpi)
        if name == "accelerate" and tuple(words[i + 1 : i + 2]) == ("launch",):
            return _launched(_ACCELERATE, words, i + 2, _interpreter_of(word), uses_mpi)
        if name == "accelerate-launch":
            return _launched(_ACCELERATE, words, i + 1, _interpreter_of(word), uses_mpi)
    return TrainingCommand(tuple(words), None, None, uses_mpi=uses_mpi)


def _python(words: Sequence[str], at: int, uses_mpi: bool) -> TrainingCommand:
    python = shutil.which(words[at])
    i = at + 1
    while i < len(words) and words[i].startswith("-") and words[i] not in {"-m", "-c", "-"}:
        i += 2 if words[i] in _PYTHON_WITH_VALUE else 1
    if i + 1 < len(words) and words[i] == "-m" and words[i + 1] in _LAUNCHERS:
        return _launched(_TORCHRUN, words, i + 2, python, uses_mpi)
    if tuple(words[i : i + 2]) == ("-m", "accelerate.commands.launch"):
        return _launched(_ACCELERATE, words, i + 2, python, uses_mpi)
    if (
        i >= len(words)
        or words[i] in {"-c", "-"}
        or (words[i].startswith("-m") and len(words) < i + 2)
    ):
        return TrainingCommand(tuple(words), None, python, uses_mpi=uses_mpi)
    return TrainingCommand(tuple(words), i, python, uses_mpi=uses_mpi)


def _launched(
    launcher: _Launcher, words: Sequence[str], first: int, python: str | None, uses_mpi: bool
) -> TrainingCommand:
    """Read the options of a launcher up to the script."""
    values: dict[str, str] = {}
    i = first
    while i < len(words) and words[i].startswith("-"):
        name, equals, value = words[i].partition("=")
        name = "--" + name.lstrip("-").replace("_", "-") if name.startswith("--") else name
        if name in {"-m", "--module"}:
            break
        if name in launcher.alone:
            values[name] = ""
            i += 1
        elif equals or (not name.startswith("--") and len(name) > 2):  # -r3
            values[name] = value
            i += 1
        else:
            values[name] = words[i + 1] if i + 1 < len(words) else ""
            i += 2
    runs_python = "--no-python" not in values and "--run-path" not in values
    if i < len(words) and launcher.may_have_others:
        names_module = words[i] in {"-m", "--module"} and i + 1 < len(words)
        names_module = names_module and not words[i + 1].startswith("-")
        runs_python &= names_module or words[i].endswith(".py")
    nodes, node = (
        values.get(option, os.environ.get(variable, ""))
        for option, variable in (launcher.num_nodes, launcher.node)
    )
    return TrainingCommand(
        tuple(words) if i >= len(words) or words[i] != "--module" else _with_short(words, i),
        i if runs_python and i < len(words) else None,
        python,
        num_nodes=int(nodes or 1) if (nodes or "1").isdecimal() else None,
        node=int(node) if node.isdecimal() else None,
        uses_mpi=uses_mpi,
    )


def _with_short(words: Sequence[str], at: int) -> tuple[str, ...]:
    return (*words[:at], "-m", *words[at + 1 :])


def _interpreter_of(program: str) -> str | None:
    """Return the Python in the first line of a script such as torchrun."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            first = file.readline(4096).decode(errors="replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        return None
    name = words[1] if Path(words[0]).name == "env" and len(words) > 1 else words[0]
    return shutil.which(name) if _PYTHON.match(Path(name).name) else None
