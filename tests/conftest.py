"""What tests need from outside: real exports (TRACEPROF_TRACES names their folder) and nsys."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_TRACES = os.environ.get("TRACEPROF_TRACES")
REAL_TRACES = sorted(Path(_TRACES).glob("**/*.sqlite")) if _TRACES else []
SAMPLE = Path(__file__).parent.parent / "sample_traces" / "ddp.sqlite"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `real_trace` once for each of them."""
    if "real_trace" not in metafunc.fixturenames:
        return
    if REAL_TRACES:
        folder = Path(_TRACES or "")
        ids = [str(path.relative_to(folder)) for path in REAL_TRACES]
        metafunc.parametrize("real_trace", REAL_TRACES, ids=ids)
    else:
        skip = pytest.mark.skip(reason="TRACEPROF_TRACES names no folder of real exports")
        metafunc.parametrize("real_trace", [pytest.param(None, marks=skip)], ids=["none"])


@pytest.fixture
def traces() -> Path:
    """Return the folder of real exports."""
    if not REAL_TRACES:
        pytest.skip("TRACEPROF_TRACES names no folder of real exports")
    return Path(_TRACES or "")


@pytest.fixture(scope="session")
def nsys() -> str:
    """Return the `nsys` on PATH; where CI lacks it, that is a failure."""
    found = shutil.which("nsys")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("nsys is not on PATH, and CI must not skip what needs it")
        pytest.skip("nsys is not on PATH")
    return found
