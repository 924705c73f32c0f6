"""Which tests `make check` runs after a change."""

from pathlib import Path

import pytest

from tests.touched import chosen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "test_units.py": "",
        "run/test_clock.py": "from traceprof.run import clock\n",
        "run/steps/test_steps.py": "from traceprof.run.steps.windows import window\n",
        "host/test_waits.py": "from traceprof.run.clock import Clock\n",
        "dashboards/test_app.py": "",
    }.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["traceprof/run/clock.py"], ["tests/host/test_waits.py", "tests/run"]),
        (["traceprof/run/steps/windows.py"], ["tests/run/steps"]),
        (["traceprof/units.py"], ["tests/test_units.py"]),
        (["dashboards/pages/run.py"], ["tests/dashboards"]),
        (["tests/host/test_waits.py"], ["tests/host/test_waits.py"]),
        (["tests/host/test_waits.txt"], ["tests/host/test_waits.py"]),
        (["docs/h100.md"], ["tests/docs"]),
        (["tests/support/builders.py", "traceprof/run/clock.py"], ["tests"]),
        (["sample_traces/x.sqlite"], ["tests"]),
        ([], ["tests"]),
    ],
)
def test_tests_of_a_change(changed: list[str], expected: list[str], root: Path) -> None:
    assert chosen(changed, root) == expected
