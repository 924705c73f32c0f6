"""Traces with texts that the profiler did not escape, and those of other tools."""

import json
import random
from pathlib import Path

import pytest

from tests.support.profiler_events import PID, annotation, call, event, kernel, text
from tests.support.selection import as_rows
from traceprof.errors import TraceFormatError
from traceprof.trace.kineto import document
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import open_trace

PLACE = PID, 1
EVENTS = [
    call(10.5, 12),
    kernel(20, 30.25),
    annotation("ProfilerStep#3", 5, 50),
    annotation("ProfilerStep#4", 60, 70),
]
UNESCAPED = {
    "a Windows path": r"torch\cuda\__init__.py(219): _lazy_init",
    "a share": r"\\host\share\train.py(3): run",
    "a path that ends in a backslash": "C:\\logs\\",
    "a user's folder": r"C:\Users\udo\x.py(1): f",
    "quotes": '{"device": "cpu", "dtype": "float32"}(12): run',
    "an odd quote": 'say "(1): run',
    "quotes and a backslash": r'"a\b" "c',
    "quotes and an end of line": 'lib = Library("a", "IMPL")\n(1): <module>',
}


def opened(path: Path, data: str) -> Trace:
    path.write_text(data)
    return open_trace(path)


def python_functions(trace: Trace) -> list[tuple[str, int, int]]:
    code = trace.python_functions(PID)
    assert code is not None
    columns = as_rows(code.packed_name.values, code.start_ns, code.length_ns)
    return [(code.names[number], start, length) for number, start, length in columns]


def raw(document: str, name: str) -> str:
    """Return the document with a name as it stands, unescaped."""
    escaped = json.dumps(name)
    assert document.count(escaped) == 1
    return document.replace(escaped, f'"{name}"')


@pytest.mark.parametrize("indent", [None, 1], ids=["one line", "indented"])
@pytest.mark.parametrize("name", UNESCAPED)
def test_unescaped_names_are_repaired(name: str, indent: int | None, tmp_path: Path) -> None:
    written = UNESCAPED[name]
    function = event("python_function", written, 11.5, 3, PLACE)
    for place in (0, 2, 4):
        events = [*EVENTS[:place], function, *EVENTS[place:]]
        document = json.dumps({"traceEvents": events, "x": [{"y": 1}]}, indent=indent)
        healthy = opened(tmp_path / "healthy", document)
        trace = opened(tmp_path / "x", raw(document, written))
        assert python_functions(trace) == python_functions(healthy)
        assert trace.contents() == healthy.contents()
        assert "1 event with backslashes or quotes" in trace.notes[0]
        assert not healthy.notes


def test_a_name_with_only_valid_escapes_stays_as_it_is(tmp_path: Path) -> None:
    function = event("python_function", "a\nb\\c", 11.5, 3, PLACE)
    trace = opened(tmp_path / "x", text([*EVENTS, function]))
    assert [name for name, *_ in python_functions(trace)] == ["a\nb\\c"]
    assert not trace.notes


def test_unescaped_paths_elsewhere_are_repaired(tmp_path: Path) -> None:
    """Call stacks of PyTorch 1.8 to 1.13, and the trace's own path."""
    operator = event("cpu_op", "aten::mm", 11, 0.5, PLACE, stack="STACK", dims=[[1, 2]])
    document = text([*EVENTS, operator], trace_name="PATH", other="x\\y")
    document = document.replace("STACK", r"C:\Users\new\x.py(3): f;C:\temp\y.py(4): g")
    trace = opened(tmp_path / "x", document.replace("PATH", r"C:\Users\me\trace.json"))
    assert "1 event with" in trace.notes[0]
    operators = trace.operators(PID)
    assert operators is not None
    assert len(operators.start_ns) == 1


def test_many_unescaped_names_in_a_long_trace(tmp_path: Path) -> None:
    names = [rf"torch\nn\{number}.py(7): f" for number in range(5000)]
    functions = [event("python_function", name, 11 + i, 1, PLACE) for i, name in enumerate(names)]
    document = json.dumps({"traceEvents": [*EVENTS, *functions]}).replace("\\\\", "\\")
    trace = opened(tmp_path / "x", document)
    assert [name for name, *_ in python_functions(trace)] == names
    cut = opened(tmp_path / "cut", document[: document.index("4999.py")])
    assert len(python_functions(cut)) == 4999
    assert any("cut short" in note for note in cut.notes)


AMBIGUOUS = {
    "the name may end at two places": r'x", "pid": 7, "tid": 1, "ts": 1, "dur": 99, "y": "\q',
    "it may be an event": '"}, {"ph": "X", "dur": 9}, {"',
    "it may be an event of another order": 'x]}}, {"ph": "f", "id": 7, "bp": "e"}, {"name": "y',
    "another order": 'x", "ph": "X", "y": "z" "',
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_names_are_refused(name: str, tmp_path: Path) -> None:
    function = event("python_function", "NAME", 11.5, 3, PLACE)
    document = text([*EVENTS, function]).replace("NAME", AMBIGUOUS[name])
    with pytest.raises(TraceFormatError, match="no JSON") as raised:
        opened(tmp_path / "x", document)
    assert "with_stack=False" in raised.value.remedy
    assert "copy" not in raised.value.remedy


def test_repairs_never_change_a_number(tmp_path: Path) -> None:
    """Any name, unescaped: the trace has the same times, or it is refused."""
    random_ = random.Random(3)
    parts = ['"', "\\", "}", "{", "]", ",", ", ", ": ", "n", "u00e9", "pid", "ph", "dur", "7", " "]
    num_read = 0
    for number in range(400):
        name = "".join(random_.choices(parts, k=random_.randint(1, 12)))
        events = [*EVENTS, event("python_function", "NAME", 11.5, 3, PLACE)]
        try:
            trace = opened(tmp_path / f"{number}", text(events).replace("NAME", name))
        except TraceFormatError:
            continue
        num_read += 1
        assert [times for _, *times in python_functions(trace)] == [[6500, 3000]], name
        assert not any("cut" in note for note in trace.notes), name
    assert num_read > 350


def test_zeros_in_a_document_come_from_copying(tmp_path: Path) -> None:
    document = text(EVENTS)
    with pytest.raises(TraceFormatError, match="copy it again"):
        opened(tmp_path / "x", document.replace('"ts": 20', "\0" * 8))


OF_TENSORFLOW = [
    {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
    {"ph": "X", "pid": 1, "tid": 2, "ts": 3, "dur": 4, "name": "gemm"},
]
GEMM = {"ph": "X", "name": "gemm", "pid": 1, "tid": 5, "ts": 1, "dur": 2}
OTHERS = {
    "the profiler of TensorFlow or JAX": {"displayTimeUnit": "ns", "traceEvents": OF_TENSORFLOW},
    "VizTracer": {"traceEvents": [GEMM | {"cat": "fee"}], "viztracer_metadata": {"version": "1.0"}},
    "rocprof": {"traceEvents": [{}, GEMM | {"args": {"BeginNs": "4000", "EndNs": "6000"}}]},
    "rocprofv3": [GEMM | {"cat": "kernel_dispatch"}],
    "rocprof-sys": {"traceEvents": [GEMM | {"cat": "rocm_hip_api"}]},
    "speedscope": {"$schema": "https://www.speedscope.app/file-format-schema.json"},
    "PyTorch's profiler before 1.8.1": [GEMM | {"pid": "CPU functions"}],
}


@pytest.mark.parametrize("tool", OTHERS)
def test_other_tools_are_called_by_name(tool: str, tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError) as raised:
        opened(tmp_path / "x.json", json.dumps(OTHERS[tool]))
    assert raised.value.why == f"it was written by {tool}, not by torch.profiler"
    assert "copy" not in raised.value.remedy
    # Nsight Systems records no AMD GPU.
    assert ("traceprof record" in raised.value.remedy) is not tool.startswith("rocprof")


def test_another_tool_is_called_by_name_whose_document_is_one_value(tmp_path: Path) -> None:
    document = {"rocprofiler-sdk-tool": ["x" * (33 << 20)]}
    with pytest.raises(TraceFormatError, match="it was written by rocprofv3"):
        opened(tmp_path / "x.json", json.dumps(document))


def test_counters_of_kernels_are_no_timeline(tmp_path: Path) -> None:
    counters = [event("cuda_profiler_range", "gemm", 20, 5, (0, 0), dram__bytes_read=7)]
    with pytest.raises(TraceFormatError, match="CUPTI's range profiler"):
        opened(tmp_path / "x", text(counters))
    trace = opened(tmp_path / "y", text([*counters, call(10.5, 12)]))
    assert "cuda_profiler_range" in trace.notes[0]


def test_what_cannot_be_repaired() -> None:
    for broken in (
        '{"ph": "X", "ts": fourty}, {',
        '{"ph": "ker"nel", "name": "x", "pid": 1}]',
        '{"ph": "X", "name": "void at{"ph": "X", "name": "void at::add", "pid": 0}]',
        "{",
    ):
        assert document.repaired(broken, 0) is None
