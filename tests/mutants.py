"""Mutation testing: the share of small changes of the code that the quick tests notice.

Run it with `make mutants`. The operators are those of cosmic-ray, which itself runs all tests for
each mutant. Here a seeded sample is drawn, the same number for each room, and a mutant runs only
the tests that execute its statement, those of the module's own file first, until one fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROOMS = ("analyses", "host", "ranks", "replay", "comparison")
_DURATIONS = "TRACEPROF_TEST_DURATIONS"  # names the file that a measured run of the tests writes
_QUICK = ("-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not slow and not long")
_MAX_SECONDS = 10.0  # for the tests of one mutant, as they were measured
_MAX_TESTS = 75

_durations: dict[str, float] = {}
_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Measure each test, with its fixtures: this module is a plugin of the measured run."""
    _durations[report.nodeid] = _durations.get(report.nodeid, 0.0) + report.duration
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write how long the tests that passed took."""
    if _DURATIONS in os.environ:
        passed = {test: seconds for test, seconds in _durations.items() if test not in _failed}
        Path(os.environ[_DURATIONS]).write_text(json.dumps(passed), encoding="utf-8")


@dataclass(frozen=True)
class Mutant:
    """One change of the source, and what the tests made of it."""

    module: str
    operator: str
    occurrence: int
    line: int
    column: int
    change: str = ""
    num_tests: int = 0
    outcome: str = ""
    """`killed`, `survived`, `timeout`, or `not run`, if no quick test executes the statement."""
    killer: str = ""

    @property
    def room(self) -> str:
        """The folder of traceprof/ that it is in."""
        return self.module.split("/")[1]

    @property
    def place(self) -> tuple[str, str, int]:
        """A key, the same in each run."""
        return self.module, self.operator, self.occurrence


def _annotated(tree: ast.Module) -> set[int]:
    """Return the lines of annotations and of imports for types, which never run."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        part: ast.expr | ast.stmt | None = None
        if isinstance(node, ast.arg | ast.AnnAssign):
            part = node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            part = node.returns
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            part = node
        if part is not None:
            lines.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return lines


def _mutants(module: Path) -> Iterator[list[Mutant]]:
    """Yield the mutants of each place in a module, of which one is drawn."""
    from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415 - only `make mutants` has it
    from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415

    source = module.read_text(encoding="utf-8")
    skipped = _annotated(ast.parse(source))
    nodes = list(ast_nodes(get_ast(source)))
    places: dict[tuple[int, int, str], list[Mutant]] = {}
    for name in operator_names():
        operator_class = get_operator(name)
        if operator_class.arguments() or name.endswith("RemoveDecorator"):
            continue
        operator = operator_class()
        positions = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(positions):
            if line not in skipped:
                mutant = Mutant(str(module), name, occurrence, line, column)
                places.setdefault((line, column, name.split("_")[0]), []).append(mutant)
    yield from places.values()


def _mutated(mutant: Mutant, source: str) -> str | None:
    """Return the changed source, None where that is not Python."""
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415

    code: str | None = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    try:
        same = code is None or ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if same else code


def _sample(per_room: int, seed: int, work: Path) -> list[Mutant]:
    """Draw mutants, the same number for each room, each place at most once."""
    kept = work / f"sample-{per_room}-{seed}.json"
    if kept.exists():
        return [Mutant(**row) for row in json.loads(kept.read_text())]
    drawn: list[Mutant] = []
    for room in ROOMS:
        chance = random.Random(f"{seed} {room}")
        modules = sorted(Path("traceprof", room).rglob("*.py"))
        places = [place for module in modules for place in _mutants(module)]
        chance.shuffle(places)
        num_drawn = 0
        for place in places:
            mutant = chance.choice(place)
            source = Path(mutant.module).read_text(encoding="utf-8")
            if num_drawn < per_room and _mutated(mutant, source) is not None:
                num_drawn += 1
                drawn.append(mutant)
    kept.write_text(json.dumps([asdict(mutant) for mutant in drawn]))
    return drawn


def _copy(target: Path) -> Path:
    """Copy what git tracks or would: mutants are never written into the working tree."""
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in files:
        if Path(name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target / name)
    return target


def _environment(folder: Path) -> dict[str, str]:
    """Return variables with which tests import the code in a folder, in child processes too."""
    return {**os.environ, "PYTHONPATH": str(folder), "TRACEPROF_TRACES": ""}


def _measure(work: Path) -> None:
    """Run the quick tests once, and record which test runs which line, and for how long."""
    folder = _copy(work / "measured")
    (folder / "coverage.ini").write_text(f"[run]\nsource=traceprof\ndata_file={work}/coverage\n")
    options = ("-p", "tests.mutants", "--cov", "--cov-config=coverage.ini", "--cov-report=")
    subprocess.run(
        [sys.executable, "-m", "pytest", *_QUICK, *options, "--cov-context=test"],
        cwd=folder,
        env=_environment(folder) | {_DURATIONS: str(work / "durations.json")},
        check=False,
    )


class _Tests:
    """The tests that run a line of a module, in the order in which a mutant runs them."""

    def __init__(self, work: Path) -> None:
        from coverage import CoverageData  # noqa: PLC0415

        self._data = CoverageData(str(work / "coverage"))
        self._data.read()
        self._seconds: dict[str, float] = json.loads((work / "durations.json").read_text())
        self._root = work / "measured"
        self._of_module = cache(self._contexts)

    def of(self, mutant: Mutant) -> list[str]:
        """Return tests: those of the module's own file first, then the shortest ones."""
        by_line = self._of_module(mutant.module)
        lines = _statement(Path(mutant.module), mutant.line)
        tests = set().union(*(by_line.get(line, set()) for line in lines or by_line))
        stem = "test_" + Path(mutant.module).stem.lstrip("_") + ".py"
        ordered = sorted(
            tests, key=lambda test: (not test.split("::")[0].endswith(stem), self._seconds[test])
        )
        chosen, seconds = [], 0.0
        for test in ordered[:_MAX_TESTS]:
            seconds += self._seconds[test]
            if seconds <= _MAX_SECONDS:
                chosen.append(test)
        return chosen

    def _contexts(self, module: str) -> dict[int, set[str]]:
        contexts = self._data.contexts_by_lineno(str(self._root / module))
        return {
            line: {name.rpartition("|")[0] for name in names} & self._seconds.keys()
            for line, names in contexts.items()
        }


def _statement(module: Path, line: int) -> range | None:
    """Return the lines of the statement at a line, None outside functions: that runs once."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not functions:
        return None
    innermost = range(0)
    for node in ast.walk(max(functions, key=lambda node: node.lineno)):
        if isinstance(node, ast.stmt) and node.lineno <= line:
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            if line < end or (body and line == body[0].lineno == node.lineno):
                innermost = max(innermost, range(node.lineno, end), key=lambda item: item.start)
    is_signature = any(innermost == range(node.lineno, node.body[0].lineno) for node in functions)
    return None if is_signature or not innermost else innermost


def _judge(mutant: Mutant, tests: list[str], folder: Path) -> Mutant:
    """Run the tests of one mutant in a copy of the tree, which is restored afterwards."""
    path = folder / mutant.module
    source, times = path.read_text(encoding="utf-8"), path.stat()
    code = _mutated(mutant, source)
    assert code is not None
    before, after = source.splitlines(), code.splitlines()
    changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
    change = "  =>  ".join(line.strip() for line in changed[0]) if changed else ""
    result = {**asdict(mutant), "change": change, "num_tests": len(tests), "outcome": "not run"}
    if not tests:
        return Mutant(**result)
    path.write_text(code, encoding="utf-8")
    options = ("-x", "--tb=no", "--no-header", "-rfE", "-p", "no:rerunfailures")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *_QUICK, *options, *tests],
            cwd=folder,
            env=_environment(folder) | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60 + 4 * _MAX_SECONDS,
            check=False,
        )
        lines = done.stdout.splitlines()
        killers = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        result["outcome"] = "killed" if done.returncode else "survived"
        result["killer"] = killers[0].split(" - ")[0].partition(" ")[2] if killers else ""
    except subprocess.TimeoutExpired:
        result["outcome"] = "timeout"
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return Mutant(**result)


def _print_score(mutants: list[Mutant]) -> None:
    """Print the survivors, and the score of each room."""
    for mutant in mutants:
        if mutant.outcome in {"survived", "not run"}:
            print(f"{mutant.outcome} {mutant.module}:{mutant.line} {mutant.operator.split('/')[1]}")
            print(f"    {mutant.change}")
    print(f"{'room':12}{'mutants':>8}{'killed':>8}{'timeout':>8}{'survived':>9}{'not run':>8}")
    for room in (*ROOMS, "all"):
        outcomes = [mutant.outcome for mutant in mutants if room in {mutant.room, "all"}]
        counts = [outcomes.count(name) for name in ("killed", "timeout", "survived", "not run")]
        print(f"{room:12}{len(outcomes):8}{counts[0]:8}{counts[1]:8}{counts[2]:9}{counts[3]:8}")


def main() -> None:
    """Draw mutants, run the tests of each, and print the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-room", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/mutants"))
    options = parser.parse_args()
    work: Path = options.work.resolve()
    if not (work / "coverage").exists():
        shutil.rmtree(work, ignore_errors=True)
        _measure(work)
    sample = _sample(options.per_room, options.seed, work)
    tests = _Tests(work)
    results = work / "mutants.jsonl"
    rows = results.read_text().splitlines() if results.exists() else []
    judged = {mutant.place: mutant for mutant in (Mutant(**json.loads(row)) for row in rows)}
    folders: SimpleQueue[Path] = SimpleQueue()
    for job in range(options.jobs):
        shutil.rmtree(work / f"copy-{job}", ignore_errors=True)
        folders.put(Path(shutil.copytree(work / "measured", work / f"copy-{job}")))

    def run(mutant: Mutant) -> Mutant:
        if mutant.place in judged:  # by a run that was interrupted
            return judged[mutant.place]
        folder = folders.get()
        try:
            result = _judge(mutant, tests.of(mutant), folder)
        finally:
            folders.put(folder)
        with results.open("a") as lines:
            print(json.dumps(asdict(result)), file=lines)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        _print_score(list(pool.map(run, sample)))


if __name__ == "__main__":
    main()
