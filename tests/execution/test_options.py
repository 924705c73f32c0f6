"""What the options of an analysis may be."""

from typing import Any

import pytest

from tests.support.selection import known
from traceprof.errors import UsageError
from traceprof.execution.options import Options, num_jobs

PAIR = "a pair of whole numbers, one of them perhaps None"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"steps": 5}, f"cannot use steps=5: that is not a value for it; give {PAIR}"),
        ({"steps": ("1", "2")}, PAIR),
        ({"steps": (True, 2)}, PAIR),
        ({"time_range": (1, 2, 3)}, PAIR),
        ({"steps": (0, 1), "time_range": (0, 1)}, "both steps and a time range"),
        ({"only": "gpu-idle"}, "give a list of texts"),
        ({"skip": [5]}, "give a list of texts"),
        ({"communication_kernels": 5}, "give a list of texts"),
        ({"link_peaks": "pcie=5"}, "give a list of texts"),
        ({"only": ["gpu-idel"]}, "did you mean 'gpu-idle'?"),
        ({"skip": ["xyz"]}, "choose among them"),
        ({"only": ["gpu-idle"], "skip": ["gpu-idle"]}, "cannot judge anything"),
        ({"step_pattern": 5}, "give a regular expression"),
        ({"step_pattern": "("}, "cannot"),
        ({"savings": "yes"}, "give True, False or None"),
        ({"period": 1}, "give True or False"),
        *(({"flops_per_step": value}, "a number above 0") for value in ("1", True, 0, -1.0, 2e18)),
    ],
)
def test_what_is_no_option(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as error:
        Options(**options).check()
    assert line in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": (None, 2), "savings": True, "flops_per_step": 1},
        {"time_range": [5, None], "period": False, "flops_per_step": 1e18},
        {"only": ["gpu-idle", "host-sync"], "skip": ["gpu-idle"], "savings": False},
    ],
)
def test_options(options: dict[str, Any]) -> None:
    Options(**options).check()


@pytest.mark.parametrize("jobs", [0, -1, True, 1.5, "2"])
def test_numbers_of_processes(jobs: Any) -> None:
    with pytest.raises(UsageError, match=f"cannot use jobs={jobs!r}"):
        num_jobs(jobs)
    assert num_jobs(1) == 1
    assert num_jobs(None) >= 1


def test_of_everything_all_is_measured_and_else_what_is_asked_for() -> None:
    assert Options().wanted(1) is Options(only=["gpu-idle"], measures_all=True).wanted(1) is None

    def measurements(num_reports: int, **options: Any) -> frozenset[str]:
        asked = Options(only=["gpu-idle", "straggler"], skip=["straggler"], **options)
        return known(asked.wanted(num_reports)).measurements

    bare = measurements(1, savings=False)
    assert "arrivals" not in bare  # by which ranks, and straggler, are compared
    assert measurements(2, savings=False) >= bare | {"arrivals"}
    assert measurements(1) > bare  # what a replay reads
