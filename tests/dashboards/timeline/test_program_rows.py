"""Rows of the program: places of a GPU's work, functions of Python, and sampled functions."""

from pathlib import Path

from dashboards.timeline.events import PYTHON
from tests.support.dashboard import asking
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.traces import analysis_of


def test_functions_of_python_have_rows_of_their_own_and_are_found(tmp_path: Path) -> None:
    place = PID, 1
    events = [
        event("python_function", "train.py(3): loop", 1, 39, place),
        event("python_function", "train.py(9): load", 2, 5, place),
        event("python_function", "train.py(11): step", 8, 20, place),
        call(10, 15), kernel(20, 30),
    ]  # fmt: skip
    with analysis_of(write(tmp_path / "t.json", events)) as analysis:
        ask = asking(analysis)
        rows = [row for row in ask("rank", rank=0)["rows"] if row["source"] == PYTHON]
        assert [(row["label"], row["events"], row["folded"]) for row in rows] == [
            ("Python", 1, True),
            ("Python · level 2", 2, True),
        ]
        assert rows[0]["group"].endswith("· Python")
        keys = ",".join(row["row"] for row in rows)
        listed = ask("events", rows=keys, start=-50_000, end=50_000)["events"]
        assert [(one["label"], int(one["duration"])) for one in listed] == [
            ("train.py(3): loop", 39_000),
            ("train.py(9): load", 5_000),
            ("train.py(11): step", 20_000),
        ]
        found = ask("matches", text="kind:python load", order="start", most=9)["events"]
        assert [(one["name"], one["start"]) for one in found] == [
            ("train.py(9): load", listed[1]["start"])
        ]
        assert ask("event", id=found[0]["id"])["facts"] == [["thread", "1"]]
