"""Analyses of samples as documents, for the tests of comparisons."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.support.traces import SAMPLE_FOLDER
from traceprof.analysis import Options, analyze_reports
from traceprof.documents.analysis.model import Document
from traceprof.reports.json import render

LATE, DDP = SAMPLE_FOLDER / "late-allreduce.sqlite", SAMPLE_FOLDER / "ddp.sqlite"
OPTIONS = Options(savings=False)
TRAINING = SAMPLE_FOLDER / "training.sqlite"


@cache
def written(path: Path) -> str:
    """Return the analysis of a sample; none is replayed, which takes longest."""
    return render(analyze_reports([path], OPTIONS))


def analysis(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(written(path))
    return loaded


def document_of(path: Path) -> Document:
    return msgspec.convert(analysis(path), Document)
