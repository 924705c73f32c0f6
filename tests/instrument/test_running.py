"""`python -m instrument` runs a script as `python` does."""

import os
import signal
import sys
import venv
import zipapp
from pathlib import Path

import pytest

from instrument.__main__ import read_arguments
from instrument.core import patching
from tests.support.commands import ended
from tests.support.selection import long_after

pytestmark = pytest.mark.slow

SHOW = '''
"""A script that tells what it finds."""
import os, pickle, sys, threading, warnings
class Own: pass
names = {name: value for name, value in globals().items() if name != "names"}
for name, value in sorted(names.items()):
    print(name, type(value) if name in ("__loader__", "__spec__") else value)
print(getattr(__spec__, "name", None), sys.argv, sys.path[:3], sys.stdin.read())
print(sys.modules["__main__"].__dict__ is globals(), pickle.loads(pickle.dumps(Own())).__class__)
print([name for name in ("torch", "numpy", "nvtx") if name in sys.modules])
'''
CHILDREN = """
import multiprocessing, sys
class Own: pass
def child(own, queue): queue.put([isinstance(own, Own), __name__, sys.argv, sys.path[:2]])
print("imported as", __name__, flush=True)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(Own(), queue))
    process.start()
    print(queue.get())
    process.join()
"""
FAIL = """
def fail(): raise ValueError("inner")
try:
    fail()
except ValueError as error:
    raise KeyError("outer") from error
"""
HOOKED = """
import sys, traceback
def hook(kind, error, trace):
    print(kind, error, [frame.name for frame in traceback.extract_tb(trace)])
    print(traceback.format_exception(error))
sys.excepthook = hook
1 / 0
"""
THREAD = """
import threading
def late(): print(__name__, Own)
class Own: pass
threading.Timer(0.05, late).start()
"""
PROGRAMS = {
    "show": (SHOW, 0),
    "children": (CHILDREN, 0),
    "fail": (FAIL, 1),
    "hooked": (HOOKED, 1),
    "syntax": ("def (", 1),
    "status": ("import sys; sys.exit(7)", 7),
    "message": ("import sys; sys.exit('the end')", 1),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
    "thread": (THREAD, 0),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the programs as scripts, as modules and as packages that can be run."""
    result = tmp_path_factory.mktemp("programs")
    package = result / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SHOW)
    for name, (text, _) in PROGRAMS.items():
        (result / f"{name}.py").write_text(text)
        (package / f"{name}.py").write_text(text)
    (result / "link.py").symlink_to(package / "show.py")
    zipapp.create_archive(package, result / "archive.pyz")
    return result


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Return exit status and output of a Python process."""
    environ, text = {**os.environ, "PYTHONPATH": str(ROOT)}, "what stands in the input"
    done = ended(sys.executable, *arguments, cwd=folder, env=environ, input=text)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_runs_as_without(folder: Path, name: str) -> None:
    expected = run(folder, f"{name}.py", "--lr", "0.1", "--", "-m", "--help")
    assert expected[0] == PROGRAMS[name][1]
    ranges = run(folder, "-m", "instrument", f"{name}.py", "--lr", "0.1", "--", "-m", "--help")
    assert ranges == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "package"],
        ["-m", "package.show", "--help"],
        ["-m", "package.fail"],
        ["-m", "no_such_module"],
        ["package"],
        ["archive.pyz", "a"],
        ["./link.py"],
        *long_after(0, [["-m", "package.children"], ["-m", "package.status"], ["-m", "json"]]),
        pytest.param(["no_such_file.py"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_other_targets_run_or_fail_as_without(folder: Path, arguments: list[str]) -> None:
    assert run(folder, "-m", "instrument", *arguments) == run(folder, *arguments)


@pytest.mark.parametrize("arguments", [["show.py", "--", "-m"], ["-m", "package.show"]])
def test_a_python_without_the_package_runs_its_folder(folder: Path, arguments: list[str]) -> None:
    environment = folder / "environment"
    if not environment.exists():
        venv.create(environment)
    python = str(environment / "bin" / "python")
    package = str(ROOT / "instrument")
    found = [
        ended(python, *words, cwd=folder, input="the input")
        for words in (arguments, [package, *arguments])
    ]
    assert (found[0].stdout, found[0].stderr) == (found[1].stdout, found[1].stderr)
    assert ended(python, "-m", "instrument", *arguments, cwd=folder).returncode == 1
    # The first arguments of DeepSpeed and torch.distributed.launch are for the script.
    (folder / "words.py").write_text("import sys; print(sys.argv)")
    words = (package, "--local_rank=1", "--steps", "1:2", "words.py", "a")
    assert ended(python, *words, cwd=folder).stdout == "['words.py', '--local_rank=1', 'a']\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no safe paths before 3.11")
def test_a_safe_path_stays_safe(folder: Path) -> None:
    assert run(folder, "-P", "-m", "instrument", "show.py") == run(folder, "-P", "show.py")


def test_usage(folder: Path) -> None:
    status, out, err = run(folder, "-m", "instrument")
    assert (status, out) == (2, "")
    assert err.startswith("usage: python -m instrument")
    status, out, err = run(folder, "-m", "instrument", "--help")
    assert (status, err) == (0, "")
    assert "torchrun" in out
    assert run(folder, "-m", "instrument", "--unknown", "show.py")[0] == 2


def test_ranges_that_are_asked_for_are_passed_on(folder: Path) -> None:
    (folder / "depth.py").write_text("import os\nprint(os.environ['TRACEPROF_MODULES'])\n")
    assert run(folder, "-m", "instrument", "--modules", "3", "depth.py") == (0, "3\n", "")
    (folder / "gc.py").write_text("import os\nprint(os.environ['TRACEPROF_GC'])\n")
    assert run(folder, "-m", "instrument", "--gc", "gc.py") == (0, "1\n", "")
    assert run(folder, "-m", "instrument", "--modules", "0", "depth.py")[0] == 2


@pytest.mark.long  # always: `show` above, and tests/recording/test_record.py
def test_ranges_are_on_once_the_script_has_imported_torch(folder: Path) -> None:
    script = folder / "imports.py"
    script.write_text(
        "import sys\n"
        "print('torch' in sys.modules, 'instrument.switch' in sys.modules)\n"
        "import torch\n"
        "import instrument\n"
        "print(instrument.is_enabled(), type(torch.__spec__.loader).__name__)\n"
        "print('exec_module' in vars(torch.__spec__.loader))\n"
    )
    status, out, err = run(folder, "-m", "instrument", "imports.py")
    assert out.split() == ["False", "False", "True", "SourceFileLoader", "False"]
    assert (status, err) == (0, "")


def test_after_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    called: list[str] = []
    for name in ("first", "second", "third"):
        (tmp_path / f"imported_{name}.py").write_text("value = 1\n")
    (tmp_path / "imported_failing.py").write_text("raise KeyError('own')\n")

    patching.after_import("imported_first", lambda: called.append("first"))
    patching.after_import("imported_first", lambda: called.append("also first"))
    off = patching.after_import("imported_second", lambda: called.append("second"))
    patching.after_import("imported_failing", lambda: called.append("failing"))
    patching.after_import("imported_third", lambda: called.append(str(1 / 0)))
    assert called == []
    off()
    for name in ("first", "second", "third"):
        module = __import__(f"imported_{name}")
        assert module.value == 1
        assert module.__spec__ is not None
        assert "exec_module" not in vars(module.__spec__.loader)
    with pytest.raises(KeyError, match="own"):
        __import__("imported_failing")
    assert sorted(called) == ["also first", "first"]
    assert sys.meta_path == before
    patching.after_import("imported_first", lambda: called.append("at once"))
    assert called[2:] == ["at once"]


def test_steps_that_are_no_range(folder: Path) -> None:
    status, out, err = run(folder, "-m", "instrument", "--steps", "3", "show.py")
    assert (status, out) == (2, "")
    assert "--steps" in err


@pytest.mark.parametrize("own", [["--local_rank=3"], ["--local-rank", "3"], ["--local_rank", "3"]])
def test_the_local_rank_is_passed_on_as_it_was_written(own: list[str]) -> None:
    target = read_arguments([*own, "train.py", "--local_rank", "5", "a"])
    assert target.arguments == (*own, "--local_rank", "5", "a")
    assert read_arguments(["train.py", "--local_rank", "5"]).arguments == ("--local_rank", "5")
