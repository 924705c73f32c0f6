"""Install what `make dist` built into empty environments, and run the demo in each.

python -m tests.support.dist dist                 the wheel and sdist there, in every Python at hand
python -m tests.support.dist dist --constraints   write both files of constraints first
python -m tests.support.dist                      only the tests with the lowest versions

In the oldest Python the quick tests of reports, frames and store run with the lowest versions of
all that is allowed, in the newest with the newest there are. The exit status is 1 where a test
fails, where a distribution prints something else than this folder's own traceprof, or where no
Python of the promised versions is at hand.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
LOWEST = ROOT / "constraints-lowest.txt"
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
EXTRAS = "dashboard,distributed,export,query,zstd"
"""Every extra that is for users but `instrument`: the training environment chooses its torch."""
DEMO = ("traceprof", "analyze", "sample_traces/training.sqlite")
IMPORTS = "import dashboards, instrument; from traceprof import *"
HEADER = """\
# Versions with which traceprof is tested: pip install -c constraints.txt .
# Written by `make constraints`, which solves them for all Pythons.
"""
LOWEST_HEADER = """\
# The lowest versions that pyproject.toml allows, and what goes with them, in Python 3.10.
# Written by `make constraints`, which solves them; `make versions` runs tests with them.
"""
QUICK_TESTS = ("tests/frames", "tests/reports", "tests/test_store.py")
FOR_TESTS = (
    *("hypothesis", "jsonschema", "playwright", "pytest", "pytest-rerunfailures", "pytest-xdist"),
)


def interpreters() -> dict[str, Path]:
    """Return a Python of each promised version: on PATH, or beside the one that runs this."""
    programs: dict[str, Path] = {}
    for version in VERSIONS:
        candidates = [*on_path(f"python{version}"), *beside(f"python{version}")]
        if program := next((path for path in candidates if version_of(path) == version), None):
            programs[version] = program
    return programs


def on_path(name: str) -> Iterator[Path]:
    """Yield the programs of a name in every folder of PATH, not the first alone."""
    for folder in os.get_exec_path():
        if program := shutil.which(name, path=folder):
            yield Path(program)


def beside(name: str) -> list[Path]:
    """Return programs of installations beside that of this Python, as version managers lay them."""
    versions = Path(sys.base_prefix).resolve().parent
    return sorted([*versions.glob(f"*/bin/{name}"), *versions.parent.glob(f"*/*/bin/{name}")])


def version_of(program: Path) -> str | None:
    """Return `3.12`, or None where the program does not run."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def run(*command: str | Path) -> str:
    """Run a command at the top of the repository, and return what it prints.

    Raises:
        SystemExit: it fails; what it printed is shown.
    """
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def install(python: Path, package: str, folder: Path, constraints: Path | None) -> Path:
    """Make an empty environment with a package in it, and return the folder of its programs."""
    run(python, "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip")
    limits = () if constraints is None else ("--constraint", constraints)
    run(*pip, "install", "--quiet", "--disable-pip-version-check", *limits, package)
    run(*pip, "check")
    return folder / "bin"


def outside(folder: Path, command: tuple[str | Path, ...]) -> str:
    """Return what a command prints in a folder that has the samples and no source of ours."""
    folder.mkdir(exist_ok=True)
    if not (samples := folder / "sample_traces").exists():
        samples.symlink_to(ROOT / "sample_traces")
    script = 'cd "$1" && shift && exec "$@"'
    return run("/bin/sh", "-c", script, "sh", folder, *command)


def check(distribution: Path, python: Path, shown: str) -> None:
    """Install a wheel or sdist into an empty environment; the demo prints what it should.

    Raises:
        SystemExit: it does not.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = install(python, str(distribution), folder / "env", CONSTRAINTS)
        outside(folder / "empty", (programs / "python", "-I", "-c", IMPORTS))
        printed = outside(folder / "empty", (programs / DEMO[0], *DEMO[1:]))
    if printed != shown:
        sys.exit(f"{distribution.name} prints something else:\n{printed}")


def solved(python: Path, header: str, *how: str) -> str:
    """Return versions that go together, those of the extras too, as uv finds them."""
    with tempfile.TemporaryDirectory() as name:
        uv = install(python, "uv", Path(name) / "env", None) / "uv"
        words = ("--no-header", "--no-annotate", "--no-emit-package", "pip", *how)
        extras = [word for extra in EXTRAS.split(",") for word in ("--extra", extra)]
        return header + run(uv, "pip", "compile", "--quiet", *words, *extras, "pyproject.toml")


def check_tests(python: Path, limits: Path | None) -> None:
    """Run the quick tests of what other packages' versions matter for, with some versions.

    Raises:
        SystemExit: one fails.
    """
    with tempfile.TemporaryDirectory() as name:
        programs = install(python, f"{ROOT}[{EXTRAS}]", Path(name) / "env", limits)
        constrained = () if limits is None else ("--constraint", limits)
        pip = (programs / "python", "-m", "pip", "install", "--quiet")
        run(*pip, "--disable-pip-version-check", *constrained, *FOR_TESTS)
        pytest = (programs / "python", "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider")
        print(run(*pytest, "-m", "not slow and not long", *QUICK_TESTS).splitlines()[-1])


def check_lowest(pythons: dict[str, Path]) -> None:
    """Run tests with the lowest versions, which only the oldest Python has."""
    if VERSIONS[0] in pythons:
        check_tests(pythons[VERSIONS[0]], LOWEST)
        print(f"Python {VERSIONS[0]}: tests run with the lowest versions", flush=True)
    else:
        print(f"the lowest versions are not tried: Python {VERSIONS[0]} is not at hand", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, nargs="?", help="with the wheel and the sdist")
    parser.add_argument("--constraints", action="store_true", help="write constraints.txt first")
    arguments = parser.parse_args()
    pythons = interpreters()
    if arguments.folder is None:
        check_lowest(pythons)
        return 0
    distributions = sorted(path.resolve() for path in arguments.folder.iterdir())
    kinds = {re.sub(r".*(\.whl|\.tar\.gz)$", r"\1", path.name) for path in distributions}
    if kinds != {".whl", ".tar.gz"}:
        sys.exit(f"{arguments.folder} has no wheel and no sdist, or something else")
    missing = [version for version in VERSIONS if version not in pythons]
    if not pythons:
        sys.exit(f"no Python {', '.join(VERSIONS)} with venv is on PATH")
    if arguments.constraints:
        python, oldest = next(iter(pythons.values())), ("--python-version", VERSIONS[0])
        newest_versions = solved(python, HEADER, "--universal", *oldest)
        CONSTRAINTS.write_text(newest_versions, encoding="utf-8")
        lowest_versions = solved(python, LOWEST_HEADER, "--resolution", "lowest-direct", *oldest)
        LOWEST.write_text(lowest_versions, encoding="utf-8")
    shown = run(Path(sys.executable).with_name(DEMO[0]), *DEMO[1:])
    for version, python in pythons.items():
        for distribution in distributions:
            check(distribution, python, shown)
            print(f"Python {version}: {distribution.name} installs and runs", flush=True)
    check_lowest(pythons)
    newest = max(pythons, key=VERSIONS.index)
    check_tests(pythons[newest], None)
    print(f"Python {newest}: tests run with the newest versions", flush=True)
    if missing:
        print(f"not at hand, and not tried: Python {', '.join(missing)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
