"""`traceprof.instrument` is `instrument`: every module once, under both names."""

import sys
from pathlib import Path

import pytest

from tests.support.commands import ended, output_of

PROGRAM = """
import sys
import traceprof
{first}
{second}
from traceprof import instrument as ours
import instrument
assert ours is instrument is traceprof.instrument is sys.modules["traceprof.instrument"]
steps = sys.modules["instrument.core.steps"]
assert sys.modules["traceprof.instrument.core.steps"] is steps is ours.core.steps
assert (steps.__name__, steps.__spec__.name) == ("instrument.core.steps",) * 2
assert ours.__spec__.name == "instrument"
assert ours.annotate is instrument.annotate
all_modules = {{*sys.modules.values()}}
files = [each.__file__ for each in all_modules if "instrument" in getattr(each, "__name__", "")]
assert len(files) == len({{*files}}), files
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("ours_first", [True, False])
def test_no_module_is_there_twice(ours_first: bool) -> None:
    lines = ["import traceprof.instrument.core.steps", "import instrument.core.steps"]
    first, second = lines if ours_first else reversed(lines)
    program = PROGRAM.format(first=first, second=second)
    assert output_of(sys.executable, "-c", program) == "False\n"


def test_another_package_of_that_name_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "instrument").mkdir()
    (tmp_path / "instrument" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = ended(sys.executable, "-c", "from traceprof import instrument")
    assert done.returncode == 1
    assert "ImportError: another package named instrument hides, or has overwritten" in done.stderr
    assert str(tmp_path) in done.stderr


def test_it_runs_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(__name__, sys.argv)")
    done = ended(sys.executable, "-m", "traceprof.instrument", "train.py", "-a", cwd=tmp_path)
    assert done.stdout == "__main__ ['train.py', '-a']\n"
