"""What threads and other processes take they give back by `with`, also where they fail."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TAKES = {"acquire", "get_nowait"}  # of locks, semaphores and queues
_QUEUES = {"queue", "multiprocessing"}  # modules that have some
WORKERS = {
    ("dashboards/questions.py", "self._answer"),
    ("dashboards/server/serving.py", "self._application_of"),
    ("dashboards/server/serving.py", "self._serve"),
    ("dashboards/timeline/store.py", "self._work"),
    ("instrument/nsight_capture.py", "self._close"),
    ("instrument/torch_trace.py", "_compress"),
    ("instrument/watching.py", "self._run"),
    ("traceprof/execution/cluster.py", "measure_file"),
    ("traceprof/trace/sqlite/read_columns.py", "fetch"),
}
"""Functions that run in a thread or on another machine: look at what a new one takes."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    for package in ("traceprof", "dashboards", "instrument"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield str(path.relative_to(ROOT)), node


def test_locks_and_queues_are_taken_by_with() -> None:
    taken = [
        (path, call.lineno)
        for path, call in calls()
        if isinstance(call.func, ast.Attribute)
        and (
            call.func.attr in _TAKES
            or (ast.unparse(call.func.value) in _QUEUES and call.func.attr.endswith("Queue"))
        )
    ]
    assert taken == []


def test_every_function_of_a_worker_is_known() -> None:
    found = set()
    for path, call in calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name == "submit":
            found.add((path, ast.unparse(call.args[0])))
        elif name == "Thread":
            found |= {
                (path, ast.unparse(key.value)) for key in call.keywords if key.arg == "target"
            }
    assert found == WORKERS
