"""A .nsys-rep is converted with all that its nsys can export, or it is said which nsys can."""

import base64
import json
import struct
from pathlib import Path

import pytest

from tests.support.commands import attempt, nsys_on_path
from tests.support.databases import change, query
from tests.support.traces import SAMPLE
from traceprof import open_trace
from traceprof.trace.nsight.nccl import add_payloads

_HELP = 'if [ "$2" = --help ]; then echo "--include-blobs= --include-json="; exit 0; fi\n'
_OLD_HELP = 'if [ "$2" = --help ]; then echo "--lazy="; exit 0; fi\n'


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "reports" / "r.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"NVIDIA Tegra Profiler Report 2026@3@1@157-263.0" + bytes(100))
    return path


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a program that is called nsys first on PATH; return the list of its arguments."""
    arguments = folder / "arguments"
    nsys_on_path(folder, monkeypatch, f"#!/bin/sh\necho \"$@\" >> '{arguments}'\n{script}")
    return arguments


def test_payloads_are_exported_where_nsys_can(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = f"case $argument in --output=*) cp '{SAMPLE}' ${{argument#*=}};; esac"
    copy = f"for argument; do {case}; done"
    arguments = stand_in(tmp_path, monkeypatch, _HELP + copy)
    open_trace(report).close()
    commands = arguments.read_text().splitlines()
    (export,) = [command for command in commands if "--type=" in command]
    assert "--type=sqlite --include-blobs=true --include-json=true --output=" in export


@pytest.mark.parametrize(
    ("version", "is_too_old"),
    [("2023.4.4.54", True), ("2026.2.1.210", True), ("2026.3.1.157", False)],
)
def test_nsys_is_too_old(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_too_old: bool
) -> None:
    say = f'if [ "$1" = --version ]; then echo "{version}-1v0"; exit 0; fi\necho Bad; exit 1'
    stand_in(tmp_path, monkeypatch, _OLD_HELP + say)
    line = attempt(report).line
    if not is_too_old:
        assert "nsys says: Bad; copy it again" in line
        return
    short = ".".join(version.split(".")[:2])
    assert f"Nsight Systems 2026.3 recorded it, and the nsys on PATH is {short}; install" in line
    assert f"run: nsys export --type=sqlite --include-blobs=true {report}" in line


def event(name_schema: int, data: bytes, start: int = 10, **more: object) -> str:
    payload = {"SchemaId": str(name_schema), "Data": base64.b64encode(data).decode()}
    place = {"Timestamp": str(start), "EndTimestamp": str(start + 5), "GlobalTid": "7"}
    what = {"DomainId": "1", "NsTime": True, "Payload": {"BinaryData": [payload]}}
    return json.dumps({"Type": 59, "NvtxEvent": {**place, **what, **more}})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (event(16777220, struct.pack("<Q", 4096)), {"Message size [bytes]": 4096}),
        (event(16777220, struct.pack("<QQ", 9, 4096)), None),  # NCCL 2.25: a communicator, too
        (event(16777221, struct.pack("<QQ", 4096, 0)), None),  # a range of another name
        (event(16777220, struct.pack("<Q", 4096), start=11), None),
        (event(16777220, struct.pack("<Q", 4096), GlobalTid="8"), None),
        (event(16777220, struct.pack("<Q", 4096), NsTime=False), None),
        (event(99, struct.pack("<Q", 4096)), None),
        ('{"NvtxEvent": {"Payload": {"BinaryData": 3', None),
        ('["BinaryData"]', None),
    ],
)
def test_payloads_from_json(tmp_path: Path, line: str, expected: dict[str, int] | None) -> None:
    export, document = tmp_path / "t.sqlite", tmp_path / "t.json"
    document.write_text(f'{{"data":[]}}\n{line}\n')
    change(export, "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    change(export, "INSERT INTO StringIds VALUES (1, 'ncclAllGather')")
    change(
        export,
        "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT,"
        " globalTid INT, textId INT, domainId INT, jsonText TEXT)",
    )
    change(export, "INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, 'NCCL', 7, NULL, 1, NULL)")
    change(export, "INSERT INTO NVTX_EVENTS VALUES (10, 15, 59, NULL, 7, 1, 1, NULL)")
    assert add_payloads(export, document) == (expected is not None)
    (text,) = query(export, "SELECT jsonText FROM NVTX_EVENTS WHERE start = 10")[0]
    assert (text and json.loads(text)) == expected


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.usefixtures("nsys")
def test_sizes_of_a_real_report(rank: int, traces: Path) -> None:
    trace = open_trace(traces / "nccl_payload_2024" / f"rank_{rank}.nsys-rep")
    (process,) = {key.process for key in trace.operations}
    calls = trace.communication_calls(process)[0]
    assert calls.bytes.tolist() == [21_233_664]
    trace.close()


def test_nsight_2026_3_is_read_without_doubt(traces: Path) -> None:
    trace = open_trace(traces / "small_bwd_3.27.0.sqlite")
    assert trace.schema_version == "3.27.0"
    assert sum(len(operations) for operations in trace.operations.values()) == 1905 + 25 + 121
    assert all(note.startswith("Nsight Systems says: ") for note in trace.notes)
    trace.close()
