"""Mutation testing: the share of small changes of the code that the tests of `make test` notice.

Run it with `make mutants`. The operators are those of cosmic-ray, which itself starts all tests for
each mutant. Here a seeded sample is drawn, the same number for each room. A process that has
collected the tests forks for each mutant, exchanges the code of the changed function, and runs only
the tests that execute its statement, those of the module's own file first, until one fails. What
ran at import is tested in a new process.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

import pytest

ROOMS = {
    **{room: f"traceprof/{room}" for room in ("analyses", "host", "ranks", "replay", "comparison")},
    **{room: f"traceprof/{room}" for room in ("recording", "execution")},
    "instrument": "instrument",
    "dashboards": "dashboards",
}
"""Folders by the names that options and the score have."""
_RECORD = "TRACEPROF_TEST_RECORD"  # names the file that a run of tests writes
_JOB = "TRACEPROF_MUTANTS"  # names the file with the mutants of a process
# Of the others few run code of these rooms that no test here runs.
_TESTED = tuple(
    f"tests/{folder}"
    for folder in (
        "analyses", "cli", "communication", "comparison", "dashboards", "execution", "host",
        "instrument", "ranks", "recording", "reference", "replay", "reports",
    )
)  # fmt: skip
_OPTIONS = ("-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not long")
_PLUGIN = ("-p", "tests.mutants")
_MAX_CPU_S = 5.0  # for the tests of one mutant, as they were measured
_MAX_WALL_S = 600
_MAX_TESTS = 75
_TOO_LATE = (signal.SIGPROF, signal.SIGALRM)

_seconds: dict[str, float] = {}
_failed: set[str] = set()
_last_report_s = 0.0


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Measure each test's CPU time, with its fixtures: this module is a plugin of pytest."""
    global _last_report_s  # noqa: PLW0603 - a plugin that is a module
    now = time.process_time()
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + now - _last_report_s
    _last_report_s = now
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write how long the tests that passed took, and which ones failed."""
    if _RECORD in os.environ:
        passed = {test: seconds for test, seconds in _seconds.items() if test not in _failed}
        record = {"passed": passed, "failed": sorted(_failed)}
        Path(os.environ[_RECORD]).write_text(json.dumps(record), encoding="utf-8")


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
    """`killed`, `survived`, `timeout`, or `not run`, if no test executes the statement."""
    killer: str = ""

    @property
    def room(self) -> str:
        """The name of the folder that it is in."""
        return next(room for room, folder in ROOMS.items() if self.module.startswith(f"{folder}/"))

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
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415

    code: str | None = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    try:
        same = code is None or ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if same else code


def _sample(rooms: list[str], per_room: int, seed: int, work: Path) -> list[Mutant]:
    """Draw mutants, the same number for each room, each place at most once."""
    kept = work / f"sample-{'-'.join(rooms)}-{per_room}-{seed}.json"
    if kept.exists():
        return [Mutant(**row) for row in json.loads(kept.read_text())]
    drawn: list[list[Mutant]] = []
    for room in rooms:
        chance = random.Random(f"{seed} {room}")
        modules = sorted(Path(ROOMS[room]).rglob("*.py"))
        places = [place for module in modules for place in _mutants(module)]
        chance.shuffle(places)
        of_room: list[Mutant] = []
        for place in places:
            mutant = chance.choice(place)
            source = Path(mutant.module).read_text(encoding="utf-8")
            if len(of_room) < per_room and _mutated(mutant, source) is not None:
                of_room.append(mutant)
        drawn.append(of_room)
    sample = [mutant for group in zip(*drawn, strict=True) for mutant in group]
    kept.write_text(json.dumps([asdict(mutant) for mutant in sample]))
    return sample


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
    """Run the tests once, and record which test runs which line, and for how long."""
    folder = _copy(work / "measured")
    sources = ",".join(ROOMS.values())
    (folder / "coverage.ini").write_text(f"[run]\nsource={sources}\ndata_file={work}/coverage\n")
    options = ("--cov", "--cov-config=coverage.ini", "--cov-report=", "--cov-context=test")
    subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS, *_PLUGIN, *options, *_TESTED],
        cwd=folder,
        env=_environment(folder) | {_RECORD: str(work / "tests.json")},
        check=False,
    )


class _Tests:
    """The tests that run a line of a module, in the order in which a mutant runs them."""

    def __init__(self, work: Path) -> None:
        from coverage import CoverageData  # noqa: PLC0415

        self._data = CoverageData(str(work / "coverage"))
        self._data.read()
        self._seconds: dict[str, float] = json.loads((work / "tests.json").read_text())["passed"]
        self._root = (work / "measured").resolve()
        self._of_module = cache(self._contexts)

    def of(self, mutant: Mutant) -> tuple[list[str], bool]:
        """Return tests, those of the module's own file first, and whether an import runs it."""
        by_line = self._of_module(mutant.module)
        lines = _statement(Path(mutant.module), mutant.line)
        tests = set().union(*(by_line.get(line, set()) for line in lines or by_line))
        path = Path(mutant.module)  # tests of a package may be in one file
        own = {f"test_{part.stem.lstrip('_')}.py" for part in (path, path.parent)}
        ordered = sorted(
            tests & self._seconds.keys(),
            key=lambda test: (Path(test.split("::")[0]).name not in own, self._seconds[test]),
        )
        chosen, seconds = [], 0.0
        for test in ordered[:_MAX_TESTS]:
            seconds += self._seconds[test]
            if seconds <= _MAX_CPU_S:
                chosen.append(test)
        return chosen, lines is None or "" in tests

    def _contexts(self, module: str) -> dict[int, set[str]]:
        contexts = self._data.contexts_by_lineno(str(self._root / module))
        return {
            line: {name.rpartition("|")[0] for name in names} for line, names in contexts.items()
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


class _Judge:
    """Runs the tests of mutants in forks of a process that has collected all quick tests."""

    def __init__(self, session: pytest.Session, job: Path) -> None:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        self._tests = _Tests(job.parent)
        self._job = job
        self._live: dict[str, list[FunctionType]] = {}
        gc.unfreeze()  # tests/conftest.py froze everything
        for item in gc.get_objects():
            if type(item) is FunctionType:  # others pretend to be one
                self._live.setdefault(item.__code__.co_filename, []).append(item)
        gc.freeze()

    def judge(self, mutant: Mutant) -> Mutant:
        """Change a module of this copy of the tree, run the tests, and change it back."""
        path = Path(mutant.module).resolve()
        source, times = path.read_text(encoding="utf-8"), path.stat()
        code = _mutated(mutant, source)
        assert code is not None
        before, after = source.splitlines(), code.splitlines()
        changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
        change = "  =>  ".join(line.strip() for line in changed[0]) if changed else ""
        tests, runs_at_import = self._tests.of(mutant)
        result = {**asdict(mutant), "change": change, "num_tests": len(tests), "outcome": "not run"}
        if not tests:
            return Mutant(**result)
        record = self._job.with_suffix(".tests")
        record.unlink(missing_ok=True)
        path.write_text(code, encoding="utf-8")  # for what imports it later
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                os.environ[_RECORD] = str(record)
                self._run(tests, path, source, None if runs_at_import else code)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests started
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _TOO_LATE
        result["outcome"] = "timeout" if is_late else "killed" if status else "survived"
        if record.exists():
            result["killer"] = next(iter(json.loads(record.read_text())["failed"]), "")
        return Mutant(**result)

    def _run(self, tests: list[str], path: Path, before: str, after: str | None) -> None:
        """Run tests with functions exchanged, or in a new process if that is not enough."""
        signal.setitimer(signal.ITIMER_PROF, 10 * _MAX_CPU_S)
        signal.alarm(_MAX_WALL_S)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        live = self._live.get(str(path), [])
        if after is None or not _exchange(str(path), before, after, live):
            del os.environ[_JOB]
            os.execv(sys.executable, [*_command(self._job), *tests])  # noqa: S606 - no shell
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if _failed:
                break
        pytest_sessionfinish()
        os._exit(bool(_failed))


def _exchange(path: str, before: str, after: str, live: list[FunctionType]) -> bool:
    """Give live functions the changed code; return whether nothing else would have to change."""
    codes = (compile(text, path, "exec", dont_inherit=True) for text in (before, after))
    for old, new in zip(*map(_functions, codes), strict=True):
        if old == new:
            continue
        last = max(line for _, _, line in old.co_lines() if line)
        lines = range(old.co_firstlineno, last + 1)
        within = [function for function in live if function.__code__.co_firstlineno in lines]
        if not within or any(function.__code__ != old for function in within):
            return False
        try:
            for function in within:
                function.__code__ = new
        except ValueError:  # it takes fewer variables from outside
            return False
    return True


def _functions(code: CodeType) -> list[CodeType]:
    """Return the code of a module's functions and methods, without the functions in them."""
    found: list[CodeType] = []
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found += [part] if part.co_flags & inspect.CO_NEWLOCALS else _functions(part)
    return found


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Judge the mutants of a job in place of running the tests that were collected."""
    if _JOB not in os.environ:
        return None
    job = Path(os.environ[_JOB])
    judge = _Judge(session, job)
    for row in json.loads(job.read_text()):
        with (job.parent / "mutants.jsonl").open("a") as results:
            print(json.dumps(asdict(judge.judge(Mutant(**row)))), file=results)
    return True


def _command(job: Path) -> list[str]:
    options = ("-x", "-s", "-p", "no:rerunfailures", f"--basetemp={job.with_suffix('')}")
    return [sys.executable, "-m", "pytest", *_OPTIONS, *_PLUGIN, *options]


def _judged(work: Path) -> dict[tuple[str, str, int], Mutant]:
    """Return the mutants judged so far, also by a run that was interrupted."""
    results = work / "mutants.jsonl"
    rows = results.read_text().splitlines() if results.exists() else []
    return {mutant.place: mutant for mutant in (Mutant(**json.loads(row)) for row in rows)}


def _print_score(mutants: list[Mutant]) -> None:
    """Print the survivors, and the score of each room."""
    for mutant in mutants:
        if mutant.outcome in {"survived", "not run"}:
            print(f"{mutant.outcome} {mutant.module}:{mutant.line} {mutant.operator.split('/')[1]}")
            print(f"    {mutant.change}")
    print(f"{'room':12}{'mutants':>8}{'killed':>8}{'timeout':>8}{'survived':>9}{'not run':>8}")
    for room in (*dict.fromkeys(mutant.room for mutant in mutants), "all"):
        outcomes = [mutant.outcome for mutant in mutants if room in {mutant.room, "all"}]
        counts = [outcomes.count(name) for name in ("killed", "timeout", "survived", "not run")]
        print(f"{room:12}{len(outcomes):8}{counts[0]:8}{counts[1]:8}{counts[2]:9}{counts[3]:8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=[*ROOMS])
    parser.add_argument("--per-room", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/mutants"))
    options = parser.parse_args()
    work: Path = options.work.resolve()
    if not (work / "coverage").exists():
        shutil.rmtree(work, ignore_errors=True)
        _measure(work)
    sample = _sample(options.rooms, options.per_room, options.seed, work)
    judged = _judged(work)
    pending = [asdict(mutant) for mutant in sample if mutant.place not in judged]
    processes = []
    for number in range(options.jobs):
        folder, job = work / f"copy-{number}", work / f"job-{number}.json"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(work / "measured", folder)
        job.write_text(json.dumps(pending[number :: options.jobs]))
        variables = {**_environment(folder), _JOB: str(job), "PYTHONDONTWRITEBYTECODE": "1"}
        processes.append(subprocess.Popen([*_command(job), *_TESTED], cwd=folder, env=variables))
    for process in processes:
        process.wait()
    judged = _judged(work)
    _print_score([judged[mutant.place] for mutant in sample if mutant.place in judged])


if __name__ == "__main__":
    main()
