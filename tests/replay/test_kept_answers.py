"""What `traceprof whatif` prints of samples, programs and recordings, as `kept/` has it.

The first line of a text is its command, whose report is named after a sample, a program of the
second simulator or a recording of a GPU, and what it lacks. `make sample` writes all texts anew:
their difference is what a change does to answers.
"""

import os
import tempfile
from pathlib import Path
from shutil import copyfile

import pytest

from tests.reference.gpu_programs import PROGRAMS
from tests.support.changes import damaged
from tests.support.commands import printed
from tests.support.traces import SAMPLES

KEPT = sorted(Path(__file__).with_name("kept").glob("*.txt"))
_RECORDINGS = [*SAMPLES, *(Path(__file__).parents[1] / "gpu" / "recordings").rglob("*.pt.trace.*")]


def answers(kept: Path, folder: Path) -> str:
    """Write the report of a text into a folder, and return the text as it is now."""
    command = kept.read_text(encoding="utf-8").partition("\n")[0]
    report = folder / command.split()[3]
    name, _, missing = report.name.partition(".")[0].partition("-without-")
    whole = report.with_name(report.name.replace(f"-without-{missing}", ""))
    if name in PROGRAMS:
        PROGRAMS[name].run(0).write(whole)
    else:
        copyfile(next(path for path in _RECORDINGS if path.name == whole.name), whole)
    if missing:
        damaged(whole, report, missing.replace("-", " "))
    return f"{command}\n{printed(*command.split()[2:])}"


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.stem)
def test_answers_are_those_that_are_kept(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answers(kept, tmp_path) == kept.read_text(encoding="utf-8")


if __name__ == "__main__":
    for kept in KEPT:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            kept.write_text(answers(kept, Path(folder)), encoding="utf-8")
