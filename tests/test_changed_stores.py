"""Stores and saved analyses that somebody changed: refused in one line, at once."""

import json
import shutil
import zlib
from collections.abc import Callable
from operator import setitem
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest

from tests.support.commands import in_process
from tests.support.databases import change
from tests.support.kept_claims import KeptText
from tests.support.traces import result_of
from traceprof.cli.main import EXIT_ERROR
from traceprof.documents.analysis.records import MAX_DOCUMENT_BYTES
from traceprof.store import save

DDP = Path(__file__).parents[1] / "sample_traces" / "ddp.sqlite"


def one_byte_too_many() -> bytes:
    """Return a document that unpacks to more than may be; packed a MiB at a time."""
    packer = zlib.compressobj(1)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(MAX_DOCUMENT_BYTES >> 20)]
    return b"".join((*parts, packer.compress(b"0"), packer.flush()))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save(folder / "runs.db", result_of(DDP), "a")
    in_process("analyze", "--format", "json", "-o", folder / "a.json", DDP)
    return folder


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("labels", "x"), ("labels", "[]"), ("labels", '{"a": 1}'), ("hosts", "5"), ("hosts", "{}"),
        ("hosts", "[1]"), ("name", b"\0\xff"), ("num_ranks", "many"), ("step_ns", -1.5),
        ("saved_utc", "\x1b[2J"),
    ],
)  # fmt: skip
def test_a_changed_row_of_a_run(saved: Path, tmp_path: Path, column: str, value: object) -> None:
    store = Path(shutil.copy(saved / "runs.db", tmp_path))
    change(store, f"UPDATE runs SET {column} = ?", value)
    for how in ((), ("--format", "json"), ("--format", "csv")):
        outcome = in_process("runs", store, *how)
        assert outcome.code == EXIT_ERROR
        assert "a row of its table of runs is damaged" in outcome.line


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"no zlib", "cannot be unpacked"),
        (None, "cannot be unpacked"),
        (zlib.compress(b"{}")[:-1], "cannot be unpacked"),
        (..., "it has over 256 MiB"),
        (zlib.compress(b"{"), "it is not JSON"),
        (zlib.compress(b"[" * 100_000), "it is not JSON"),
        (zlib.compress(b"[]"), "it is None, not an analysis"),
        (zlib.compress(b"\xff"), "it is not JSON"),
    ],
)
def test_a_changed_document_of_a_run(
    saved: Path, tmp_path: Path, packed: bytes | EllipsisType | None, why: str
) -> None:
    packed = one_byte_too_many() if packed is ... else packed
    store = Path(shutil.copy(saved / "runs.db", tmp_path))
    change(store, "UPDATE documents SET json_zlib = ?", packed)
    assert why in in_process("compare", f"{store}#a", saved / "a.json").line
    assert "left out a: " in in_process("runs", store, "--format", "csv").err


def test_a_changed_analysis(
    saved: Path, tmp_path: Path, kept_text: KeptText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes: tuple[Callable[[Any], object], ...] = (
        lambda document: document["steps"].clear(),
        lambda document: setitem(document["step_totals"][0]["steps"], 0, 99),
        lambda document: document["reports"].clear(),
        lambda document: document["ranks"].append(document["ranks"][0]),
        lambda document: document["step_totals"][0].update(window_ns=1 << 63),
    )
    said: list[str] = []
    sides = Path("changed.json"), saved / "a.json"
    for change_document in changes:
        document = json.loads((saved / "a.json").read_text())
        change_document(document)
        sides[0].write_text(json.dumps(document))
        lines = {in_process("compare", *order).line for order in (sides, sides[::-1])}
        said += lines
        assert len(lines) == 1
    kept_text("\n".join(said))
