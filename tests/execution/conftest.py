"""What tests of workers share."""

import sys

import pytest

from traceprof import analysis
from traceprof.execution import many_reports, workers


@pytest.fixture
def can_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers made although other tests leave threads behind."""
    if sys.platform != "linux":
        pytest.skip("no workers elsewhere")
    for module in (workers, many_reports, analysis):
        monkeypatch.setattr(module, "can_fork", lambda: True)
