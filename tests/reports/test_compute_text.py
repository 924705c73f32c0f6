"""Text on what compute consists of says no more than kernels' names do."""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from traceprof.analysis import analyze
from traceprof.reports.kernels_text import compute_lines

_ON = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn"
_OFF = "ampere_sgemm_128x64_tn"
_UNKNOWN = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"


_MATRICES = "of matrix multiplication"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((_ON, _ON), f"100.0 % {_MATRICES} runs on tensor cores"),
        ((_ON, _OFF), f"50.0 % {_MATRICES} runs on tensor cores"),
        ((_ON, _UNKNOWN), f"at least 50.0 % {_MATRICES} runs on tensor cores: kernel names"),
        (
            (_OFF, _UNKNOWN),
            f"at least 50.0 % {_MATRICES} does not run on tensor cores: kernel names",
        ),
        (
            (_UNKNOWN, _UNKNOWN),
            f"kernel names do not show whether {_MATRICES[3:]} runs on tensor cores",
        ),
    ],
)
def test_tensor_cores(names: tuple[str, ...], said: str, tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number, name in enumerate(names):
        trace.kernel(number * 1000, number * 1000 + 990, name)
    assert compute_lines(analyze(trace.write(tmp_path)).result)[1].startswith(said)
