"""Multiplications and additions of operators, held to `torch.utils.flop_counter`."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traceprof.trace.kineto.operator_work import FLOP_FORMULAS as FORMULAS
from traceprof.trace.kineto.operator_work import flops_of
from traceprof.trace.model.special_values import NULL
from traceprof.trace.open import open_trace


@pytest.mark.parametrize(
    ("name", "sizes", "values", "flops"),
    [
        ("aten::mm", [[2, 3], [3, 5]], [], 60),
        ("aten::addmm", [[5], [2, 3], [3, 5], [], []], [], 60),
        ("aten::bmm", [[4, 2, 3], [4, 3, 5]], [], 240),
        ("aten::baddbmm", [[1], [4, 2, 3], [4, 3, 5]], [], 240),
        ("aten::mm", [[2, 3], [4, 5]], [], None),
        ("aten::mm", [[2, 3], []], [], None),
        ("aten::mm", [], [], None),
        ("aten::add", [[2, 3], [2, 3]], [], None),
        ("aten::convolution", [[1, 3, 9, 9], [8, 3, 3, 3]], [], None),
        ("aten::convolution", [[1, 3, 9, 9], [8, 3, 3, 3]],
         ["", "", "", "[2, 2]", "[1, 1]", "[2, 2]", "False", "[0, 0]", "1"], 2 * 16 * 8 * 3 * 9),
        ("aten::convolution_backward", [[1, 8, 4, 4], [1, 3, 9, 9], [8, 3, 3, 3]], ["x"] * 11,
         None),
    ],
)  # fmt: skip
def test_formulas(name: str, sizes: list[Any], values: list[str], flops: int | None) -> None:
    assert flops_of(name, json.dumps(sizes).encode(), json.dumps(values).encode()) == flops


@pytest.mark.parametrize("text", [b"null", b"", b"[", b'"mm"', b"[[1e400, 2], [2, 3]]", b"[1, 2]"])
def test_shapes_that_are_none_are_not_known(text: bytes) -> None:
    assert {flops_of(name, text, text) for name in FORMULAS} == {None}


def _models(torch: Any) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """Ten models, each with what makes its input."""
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, causal: bool) -> None:
            super().__init__()
            self.qkv, self.causal = nn.Linear(32, 96), causal

        def forward(self, x: Any) -> Any:
            query, key, value = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
            return functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)

    image = lambda: torch.randn(2, 3, 24, 24)  # noqa: E731
    words = lambda: torch.randn(2, 7, 32)  # noqa: E731
    return {
        "linear": (nn.Linear(8, 16), lambda: torch.randn(4, 8)),
        "mlp": (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), words),
        "without bias": (nn.Linear(32, 16, bias=False), words),
        "convolution": (nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(),
                                      nn.Conv2d(8, 4, 5, dilation=2, padding=3)), image),
        "transposed": (nn.Sequential(nn.Conv2d(3, 8, 2), nn.ConvTranspose2d(8, 4, 3, stride=2)),
                       image),
        "one dimension": (nn.Conv1d(7, 5, 3), words),
        "three dimensions": (nn.Conv3d(3, 4, 2), lambda: torch.randn(1, 3, 6, 7, 8)),
        "attention": (Attention(causal=False), words),
        "causal attention": (Attention(causal=True), words),
        "encoder": (nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), words),
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
def test_ten_models_count_as_torch_counts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter")
    # torch counts attention on GPUs only: on a CPU it has another operator.
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    on_cpus = {
        attention: lambda *shapes, **_: counter.sdpa_flop_count(*shapes[:3]),
        backward: lambda *shapes, **_: counter.sdpa_backward_flop_count(*shapes[:4]),
    }
    models = _models(torch)
    assert len(models) == 10
    for name, (model, make) in models.items():
        batch = make()
        with counter.FlopCounterMode(display=False, custom_mapping=on_cpus) as counted:
            model(batch).sum().backward()
        path = tmp_path / f"{name}.json"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
            ) as profiled:
                model(batch).sum().backward()
            profiled.export_chrome_trace(str(path))
        assert flops_in(path) == counted.get_total_flops() > 0, name


def flops_in(path: Path) -> int:
    """Add up the operators of a trace that have a formula."""
    trace = open_trace(path)
    try:
        (process,) = {
            event["pid"]
            for event in json.loads(path.read_text())["traceEvents"]
            if event.get("cat") == "cpu_op"
        }
        operators = trace.operators(process)
        assert operators is not None
        flops, *_ = operators.work_of(slice(None))
        return int(flops[flops != NULL].sum())
    finally:
        trace.close()
