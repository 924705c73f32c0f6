"""What the Python that runs the training has, asked before anything starts.

`traceprof` is often installed elsewhere than the training (uv tool, pipx, a module of a cluster): a
job must not wait in a queue to die of a missing package. Where only `instrument` is missing, the
one beside this package runs the script: it needs nothing but nvtx, and that under nsys only.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import traceprof
from traceprof.errors import UsageError
from traceprof.recording.job import PYTHON, TrainingCommand
from traceprof.trace.programs import captured
from traceprof.version import __version__

MIN_PYTHON, MIN_TORCH = (3, 10), (2, 4)
PACKAGE = Path(traceprof.__file__).parents[1] / "instrument"
"""The `instrument` that came with this traceprof."""

NO_PROGRAM = "there is no such program"

_QUESTION = """
import sys
from importlib import metadata, util
def origin(name):
    try: spec = util.find_spec(name)
    except Exception: return None
    return None if spec is None else spec.origin or ""
def version(name):
    try: return metadata.version(name) or ""
    except Exception: return ""
names = "instrument", "nvtx", "torch", "pip"
packages = ["nvtx", "torch", "traceprof"] + ["nvidia-nccl-cu%d" % n for n in (11, 12, 13)]
answer = {
    "executable": sys.executable, "python": list(sys.version_info[:3]),
    "origins": {name: origin(name) for name in names},
    "versions": {name: version(name) for name in packages}}
"""
_RUNNERS = {"env", "uv", "conda", "mamba", "micromamba", "poetry", "pdm", "pixi", "hatch", "pipenv"}
"""Programs that choose the environment of the command after them."""
_ELSEWHERE = {"docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "kubectl", "ssh"}
_CUDA = re.compile(r"^cuda\b[^=]*=\s*'([^']+)'", re.MULTILINE)


@dataclass(frozen=True)
class Training:
    """The Python of a training, as it answered."""

    executable: str
    python: tuple[int, ...]  # its version
    # by name of a module, its file: empty where it has none, None where it is not there
    origins: Mapping[str, str | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # by name of a package; or empty

    @property
    def lacks_instrument(self) -> str:
        """Why this Python cannot run `-m instrument`; empty where it can."""
        return lack_of_instrument(self.origins.get("instrument"))

    @property
    def cuda(self) -> str:
        """Which CUDA its PyTorch was built for; empty where that is unknown."""
        if not (origin := self.origins.get("torch")):
            return ""
        try:
            match = _CUDA.search(Path(origin).with_name("version.py").read_text())
        except OSError:
            return ""
        return match.group(1) if match else ""

    def install(self, package: str) -> str:
        """Return the command that installs a package into this Python's environment."""
        python = shlex.quote(self.executable)
        if self.origins.get("pip") is None:  # of uv
            return f"uv pip install --python {python} {package}"
        return f"{python} -m pip install {package}"

    def __str__(self) -> str:
        names = ("torch", "nvtx", "traceprof")
        found = [f"{name} {self.versions[name]}" for name in names if self.versions.get(name)]
        return (
            ", ".join((f"{self.executable} (Python {'.'.join(map(str, self.python))}", *found))
            + ")"
        )

    def check(self, command: TrainingCommand, *, under_nsys: bool) -> Iterator[str]:
        """Yield what will be missing from a recording of this training.

        Raises UsageError: it cannot be recorded so; the error says what to install where.
        """
        what = f"cannot record {self.executable}"
        if self.python < MIN_PYTHON:
            why = f"it is Python {'.'.join(map(str, self.python))}, and ranges need 3.10 or later"
            raise UsageError(what, why, "run the training by a later Python")
        if self.origins.get("torch") is None:
            if not under_nsys:
                raise UsageError(what, "it has no torch", self.install("torch"))
            yield f"{self.executable} has no torch: only ranges that the program opens are recorded"
        elif (torch := numbers(self.versions.get("torch", ""))) and torch < MIN_TORCH:
            old = self.versions["torch"]
            yield f"ranges need torch 2.4 or later, and {self.executable} has {old}"
        if under_nsys and self.origins.get("nvtx") is None:
            remedy = self.install("nvtx")
            if self.origins.get("torch") is not None:
                remedy += ", or record with --with torch"
            raise UsageError(what, "it has no nvtx, which writes the ranges", remedy)
        yield from self._check_instrument(command, what, under_nsys=under_nsys)

    def _check_instrument(
        self, command: TrainingCommand, what: str, *, under_nsys: bool
    ) -> Iterator[str]:
        own = self.versions.get("traceprof", "")
        if not self.lacks_instrument:
            if own and own != __version__:
                yield f"{self.executable} has traceprof {own}, and this is {__version__}"
            return
        if lack := lack_of_instrument(str(PACKAGE / "__init__.py")):
            raise UsageError(what, f"{lack} ({PACKAGE})", "install traceprof again")
        if command.script is None and not under_nsys:
            raise UsageError(
                what,
                f"{self.lacks_instrument}, and the command names no script to put it before",
                self.install(shlex.quote(str(PACKAGE.parent))),
            )
        instead = "No ranges are recorded"
        if command.script is not None:
            instead = (
                f"The one of this command is used ({PACKAGE}); processes that the script starts"
                " itself have no ranges"
            )
        yield f"{self.executable}: {self.lacks_instrument}. {instead}"


def ask(command: TrainingCommand, environment: Mapping[str, str]) -> Training | None:
    """Return what the Python of a command has; None if it cannot be known from here.

    Raises UsageError: it does not run.
    """
    first = command.words[0]
    if shutil.which(first) is None:
        if first.endswith(".py"):
            remedy = f"write: -- python {first}, or -- torchrun --nproc-per-node 8 {first}"
            raise UsageError(f"cannot run {first}", NO_PROGRAM, remedy)
        return None
    words = question(command)
    if words is None:
        return None
    what = f"cannot run {shlex.join(words)}"
    try:
        program = f"{_QUESTION}import json; print('\\n' + json.dumps(answer))"
        done = captured(*words, "-c", program, environment=environment)
        answer = json.loads((done.stdout.strip() or "null").splitlines()[-1])
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(what, why, "check the command") from error
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        lines = (done.stderr.strip() or f"its exit status is {done.returncode}").splitlines()
        raise UsageError(what, lines[-1], "check the command")
    return _of(answer)


def this_python() -> Training:
    """Return what the Python that runs this has."""
    names: dict[str, Any] = {}
    exec(_QUESTION, names)  # noqa: S102  (our own)
    return _of(names["answer"])


def _of(answer: dict[str, Any]) -> Training:
    return Training(**{**answer, "python": tuple(answer["python"])})


def question(command: TrainingCommand) -> tuple[str, ...] | None:
    """Return the words that start the Python of a command on this machine; None if unknown."""
    if command.at is None:
        return None
    before, word = command.words[: command.at], command.words[command.at]
    names = [Path(one).name for one in before]
    if not _ELSEWHERE.isdisjoint(names) or any(one.startswith("--container") for one in before):
        return None
    runner = next((i for i, name in enumerate(names) if name in _RUNNERS), None)
    is_python = bool(PYTHON.match(Path(word).name))
    if runner is None:
        return None if command.python is None else (command.python,)
    python = word if is_python else command.python if names[runner] == "env" else "python"
    return None if python is None else (*before[runner:], python)


def lack_of_instrument(origin: str | None) -> str:
    """Return why what `import instrument` finds is not ours; empty where it is.

    Another package of this name, on the public index, overwrites our `__init__.py` where it is
    installed into the same environment, and takes it along where it is removed. `origin` is the
    module's file: empty where it has none, None where there is no module.
    """
    if origin is None:
        return "traceprof is not installed there"
    file = Path(origin) if origin else None
    try:
        is_ours = file is not None and "traceprof" in file.read_text(errors="replace")
    except OSError:
        is_ours = False
    if is_ours and file is not None and file.with_name("switch.py").exists():
        return ""
    return "another package has overwritten or deleted the `instrument` of traceprof there"


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: `2.13.0+cpu` is (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
