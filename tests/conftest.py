"""What tests need from outside: real exports (TRACEPROF_TRACES names their folder) and nsys."""

import gc
import shutil
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any
from uuid import uuid4
from zlib import crc32

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.support.kept_claims import KeptText, kept_texts
from tests.support.selection import known, missing, once
from tests.support.traces import (
    KNOWN_FOLDER,
    OWN_CPU_TRACE,
    OWN_TRACES,
    QUICK_SAMPLES,
    REAL_TRACES,
    SAMPLE_FOLDER,
    SAMPLES,
    real_name,
    real_turn,
)
from tests.support.workers import Crashes, reports_of_run
from traceprof.run import guard
from traceprof.version import __version__

_SLOW_FIXTURES = {"real_trace", "traces", "nsys", "browser", "page"}
_NUMBERS = {path.stem: number for number, path in enumerate(SAMPLES)}
_MANY = len(SAMPLES) * 3 // 4  # some samples have no simulation, others no work on a GPU
_EVERY = 32  # every 32nd of the samples that are not quick is always in tests of all samples
_FOREIGN_PROGRAMS = {"nsys", "browser", "scheduler"}  # fixtures; on a busy machine these may fail
# No wrong result is among them: those are assertions.
_THEIR_FAULTS = [
    subprocess.TimeoutExpired,
    r"^TimeoutError: .*Timeout \d+ms exceeded",
    r"^RuntimeError: Nanny failed to start",
]
# On any machine the same examples, and none is too slow; the first is for `make verify`.
for _profile, _max_examples in (("many examples", 100), ("few examples", 25)):
    settings.register_profile(
        _profile,
        max_examples=_max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile(_profile)


guard.raises = True  # what would be a line of a report fails a test


def pytest_configure(config: pytest.Config) -> None:
    """Let signals end programs that tests start, also where a shell or nohup has them ignored.

    What a worker did when it crashed is printed.
    """
    if config.option.markexpr == "long":
        settings.load_profile("many examples")
    if not hasattr(config, "workerinput"):
        config.option.testrunuid = uuid4().hex  # pytest-xdist gives it to the workers
    run = getattr(config, "workerinput", vars(config.option))["testrunuid"]
    config.pluginmanager.register(Crashes(run), "crashes")
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_report_header() -> str:
    """Say where tests are left out for want of recordings."""
    why = "TRACEPROF_TRACES names no folder of certain recordings: their tests are not collected"
    return "" if KNOWN_FOLDER else why


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Have garbage looked for among the objects of tests only, not among millions of others.

    Each worker first imports other files, so that each is compiled by one of them only.
    """
    gc.disable()
    try:
        of_worker = getattr(session.config, "workerinput", None)
        if of_worker:
            folders = map(Path, session.config.args)
            files = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
            for file in files[int(of_worker["workerid"][2:]) :: of_worker["workercount"]]:
                # What is wrong, warnings too, is said when it is collected.
                with suppress(Exception), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    import_module(".".join(file.with_suffix("").parts))
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a part of the long tests be run, and what tests keep be written anew.

    `--part 1/4` to `--part 4/4` together are all.
    """
    parser.addoption(
        "--part", metavar="N/OF", help="of the long tests, run every OF-th, from the N-th on"
    )
    parser.addoption("--keep", action="store_true", help="write the texts that tests keep anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow, long or may time out, by what it takes; keep the part asked for."""
    samples = {item: _samples(item) for item in items}
    counts = Counter(_function_of(item) for item, of_item in samples.items() if of_item)
    for item, of_item in samples.items():
        fixtures = getattr(item, "fixturenames", ())
        if _SLOW_FIXTURES.intersection(fixtures) or not QUICK_SAMPLES.issuperset(of_item):
            item.add_marker(pytest.mark.slow)
        if config.option.markexpr == "long" and is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.long)  # again, with more examples
        if of_item and counts[_function_of(item)] >= _MANY and not _is_in_turn(item, of_item):
            item.add_marker(pytest.mark.long)
        if _FOREIGN_PROGRAMS.intersection(fixtures) and config.pluginmanager.hasplugin(
            "rerunfailures"
        ):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=_THEIR_FAULTS))
    if config.option.part:
        number, _, count = config.option.part.partition("/")
        chosen = [item for item in items if item.get_closest_marker("long")]
        _keep(config, items, set(chosen[int(number) - 1 :: int(count)]))
    if KNOWN_FOLDER is None:
        has_all = (item for item in items if "traces" not in getattr(item, "fixturenames", ()))
        _keep(config, items, set(has_all))
    # Nobody waits for a recording at the end: the first worker begins with them.
    items.sort(key=lambda item: "nsys" not in getattr(item, "fixturenames", ()))


def _keep(config: pytest.Config, items: list[pytest.Item], kept: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _samples(item: pytest.Item) -> set[str]:
    """Return the samples that a test is run with, by path or by name."""
    callspec = getattr(item, "callspec", None)
    values = () if callspec is None else callspec.params.values()
    names = (str(value).rpartition("/")[2] for value in values if isinstance(value, str | Path))
    return _NUMBERS.keys() & {name.rpartition(".")[0] or name for name in names}  # `stem` is slow


def _is_in_turn(item: pytest.Item, samples: set[str]) -> bool:
    """Say whether a test is always run with its sample: with the others by `make verify`.

    Each folder of tests has some samples of its own, read once, beside the quick ones.
    """
    if item.get_closest_marker("all_samples"):
        return True
    turn = crc32(item.path.parent.name.encode()) % _EVERY
    return all(sample in QUICK_SAMPLES or _NUMBERS[sample] % _EVERY == turn for sample in samples)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker neighbouring tests, which share what is set up; who is done takes some."""
    if config.getvalue("dist") != "load":  # the user's own choice
        return None
    return import_module("xdist.scheduler").WorkStealingScheduling(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `real_trace` once for each of them."""
    if "real_trace" not in metafunc.fixturenames:
        return
    # By its scope all tests of one export run together, and open and read it once.
    turn = real_turn(
        metafunc.definition.nodeid.partition("::")[0],
        is_one=metafunc.definition.get_closest_marker("one_export") is not None,
    )
    own = list(OWN_TRACES)
    if metafunc.definition.get_closest_marker("cpu_export"):
        own.append(OWN_CPU_TRACE)
        turn.append(OWN_CPU_TRACE)
    is_quick = "not long" in metafunc.config.option.markexpr  # thousands of others take seconds
    exports = [
        pytest.param(path, marks=[] if path in turn else [pytest.mark.long], id=real_name(path))
        for path in (*own, *REAL_TRACES)
        if path in turn or not is_quick
    ]
    metafunc.parametrize("real_trace", exports, scope="session")


@pytest.fixture
def kept_text(request: pytest.FixtureRequest, tmp_path: Path) -> KeptText:
    """Return a function that compares a text with the one that is kept of the test.

    `pytest -n 0 --keep FILE` writes them: the difference is what a change does. Blank lines, the
    version and folders are left out.
    """
    path: Path = request.path.with_suffix(".txt")
    name: str = request.node.name

    def compare(text: str) -> None:
        for place in (f"{tmp_path}/", f"{SAMPLE_FOLDER}/", f"traceprof {__version__}\n"):
            text = text.replace(place, "")
        text = text.replace(f"traceprof {__version__}", "traceprof VERSION")
        said = "\n".join(line for line in text.splitlines() if line.strip())
        texts = kept_texts(path) if path.exists() else {}
        if request.config.option.keep:
            texts[name] = said
            sections = (f"{name}\n\n{indent(texts[name], '    ')}\n" for name in sorted(texts))
            path.write_text("\n".join(sections), encoding="utf-8")
        assert said == texts.get(name)

    return compare


@pytest.fixture
def traces() -> Path:
    """Return the folder of the real exports that tests know by name."""
    return known(KNOWN_FOLDER)  # without, no test that takes this is collected


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return reports of a run, which no test may change."""
    return sorted(once(tmp_path_factory, "run", reports_of_run).glob("*.sqlite"))


@pytest.fixture
def reports(tmp_path: Path, simulated: list[Path]) -> list[Path]:
    """Return reports of a run that a test may do with as it likes."""
    return [Path(shutil.copy(report, tmp_path)) for report in simulated]


@pytest.fixture(scope="session")
def nsys() -> str:
    """Return the `nsys` on PATH; where CI lacks it, that is a failure."""
    program = shutil.which("nsys")
    return program if program is not None else missing("nsys is not on PATH", "nsys")


@pytest.fixture(scope="session")
def nvtx_0_2_11(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the last nvtx whose ranges every Nsight Systems records."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "10"]

    def install(folder: Path) -> None:
        command = [*pip, "--target", str(folder), "nvtx==0.2.11"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            missing(f"nvtx==0.2.11 cannot be installed: {done.stderr.strip().splitlines()[-1:]}")

    return once(tmp_path_factory, "nvtx-0.2.11", install)
