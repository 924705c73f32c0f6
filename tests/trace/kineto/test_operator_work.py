"""FLOPs and bytes of operators by their shapes."""

import json
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.selection import known, long_after
from tests.support.traces import ranks_of
from traceprof.analyses.kernels import launched_kernels
from traceprof.trace.grouping import named_sums
from traceprof.trace.kineto.operator_work import BYTE_FORMULAS, FLOP_FORMULAS, bytes_of, flops_of
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
    assert {flops_of(name, text, text) for name in FLOP_FORMULAS} == {None}
    assert {bytes_of(name, text, text, text) for name in BYTE_FORMULAS} == {None}


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
    events = json.loads(path.read_text())["traceEvents"]
    (process,) = {event["pid"] for event in events if event.get("cat") == "cpu_op"}
    with closing(open_trace(path)) as trace:
        flops, *_ = known(trace.operators(process)).work_of(slice(None))
        return int(flops[flops != NULL].sum())


FLOAT, HALF, BF16, LONG = "float", "c10::Half", "c10::BFloat16", "long int"
SHAPE = [64, 32]
NUM = 64 * 32


@pytest.mark.parametrize(
    ("name", "sizes", "types", "strides", "expected"),
    [
        ("aten::add", [SHAPE, SHAPE, []], [FLOAT, FLOAT, "Scalar"], None, 3 * 4 * NUM),
        ("aten::add", [SHAPE, [32], []], [BF16, BF16, "Scalar"], None, 2 * (2 * NUM + 32)),
        ("aten::mul", [SHAPE, []], [HALF, "double"], None, 4 * NUM + 8),  # a number of Python
        ("aten::mul", [SHAPE, [64, 1]], [HALF, FLOAT], None, 2 * NUM + 4 * 64 + 4 * NUM),
        ("aten::mul", [SHAPE, SHAPE], [LONG, FLOAT], None, (8 + 4 + 4) * NUM),
        ("aten::relu", [SHAPE], [FLOAT], None, 8 * NUM),
        ("aten::add_", [SHAPE, SHAPE, []], [FLOAT, FLOAT, "Scalar"], None, 3 * 4 * NUM),
        # Older versions of PyTorch name a number so.
        ("aten::add_", [SHAPE, SHAPE, []], [FLOAT, FLOAT, "Int"], None, 3 * 4 * NUM + 4),
        ("aten::add", [SHAPE, SHAPE], [FLOAT, FLOAT], [[32, 1], [0, 1]], 4 * (2 * NUM + 32)),
        # The last one is where it writes.
        ("aten::clamp_min", [SHAPE, [], SHAPE], [FLOAT, "Int", FLOAT], None, 2 * 4 * NUM + 4),
        ("aten::mul", [SHAPE, SHAPE, SHAPE], [FLOAT, FLOAT, FLOAT], None, 3 * 4 * NUM),
        ("aten::copy_", [SHAPE, SHAPE, []], [BF16, FLOAT, "Scalar"], None, 6 * NUM),
        ("aten::_softmax", [SHAPE, [], []], [BF16, "Scalar", "Scalar"], None, 4 * NUM),
        ("aten::native_layer_norm", [SHAPE, [], [32], [32], []],
         [FLOAT, "ScalarList", FLOAT, FLOAT, "Scalar"], None, 8 * NUM + 2 * 4 * 32),
        ("aten::sum", [SHAPE, []], [FLOAT, ""], None, 4 * NUM),
        ("aten::add", [[0, 3], [0, 3]], [FLOAT, FLOAT], None, None),
        ("aten::add", [[-1, 3], [1, 3]], [FLOAT, FLOAT], None, None),
        ("aten::add", [[[2, 3]], []], ["TensorList", "Scalar"], None, None),
        ("aten::add", [SHAPE, SHAPE], [FLOAT, "mine"], None, None),
        ("aten::add", [SHAPE], [FLOAT, FLOAT], None, None),
        ("aten::view", [SHAPE], [FLOAT], None, None),
    ],
)  # fmt: skip
def test_formulas_of_bytes(
    name: str, sizes: list[Any], types: list[str], strides: Any, expected: int | None
) -> None:
    texts = (json.dumps(part).encode() for part in (sizes, types, strides))
    moved = bytes_of(name, *texts)
    assert (None if moved is None else moved.all) == expected


def test_a_copy_reads_only_its_source() -> None:
    texts = (json.dumps(part).encode() for part in ([SHAPE, SHAPE], [BF16, FLOAT], None))
    moved = bytes_of("aten::copy_", *texts)
    assert moved is not None
    assert moved.read == 2 * (moved.all - moved.read)


@pytest.mark.long
def test_torch_moves_as_much_as_its_tensors_hold() -> None:
    """Inputs and outputs of real calls, by the bytes that their tensors have."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    wide, row, narrow = torch.ones(8, 16), torch.ones(16), torch.ones(8, 16, dtype=torch.bfloat16)
    names = {torch.float32: FLOAT, torch.bfloat16: BF16}
    for name, run, inputs in (
        ("aten::add", torch.add, (wide, row)), ("aten::mul", torch.mul, (narrow, wide)),
        ("aten::gelu", functional.gelu, (narrow,)), ("aten::sub", torch.sub, (row, wide)),
        ("aten::_softmax", lambda x: torch.softmax(x, -1), (wide,)),
        ("aten::maximum", torch.maximum, (wide, narrow)),
    ):  # fmt: skip
        read = sum(one.nbytes for one in inputs)
        expected = read + run(*inputs).nbytes, read
        texts = ([[*one.shape] for one in inputs], [names[one.dtype] for one in inputs], None)
        assert bytes_of(name, *(json.dumps(part).encode() for part in texts)) == expected, name


def test_kernels_of_an_operator_share_its_bytes(tmp_path: Path) -> None:
    shapes = {"Input Dims": [SHAPE, SHAPE], "Input type": [FLOAT, FLOAT]}
    events = [
        event("cpu_op", "aten::add", 0, 20, (PID, 1), **shapes),
        call(5, 6, number=1), kernel(30, 40, name="one", number=1),
        call(7, 8, number=2), kernel(40, 70, name="other", number=2),
        event("cpu_op", "aten::cat", 80, 20, (PID, 1), **shapes),
        call(85, 86, number=3), kernel(90, 95, name="joined", number=3),
        event("cpu_op", "aten::add", 100, 20, (PID, 1)),
        call(105, 106, number=4), kernel(110, 120, name="unknown", number=4),
        call(125, 126, number=5), kernel(130, 140, name="one too", number=5),
        event("cpu_op", "aten::cat", 140, 20, (PID, 1)),
        call(145, 146, number=6), kernel(150, 161, name="one too", number=6),  # 1 us longer
    ]  # fmt: skip
    with ranks_of(write(tmp_path / "t.json", events)) as (rank,):
        found = launched_kernels.run(rank, rank.window)
    moved = {name: launcher.moved_bytes for name, launcher in found.by_name.items()}
    assert moved == {
        "one": 3 * NUM, "other": 9 * NUM, "joined": None, "unknown": None, "one too": None,
    }  # fmt: skip
    operators = {name: launcher.operator for name, launcher in found.by_name.items()}
    assert operators == {
        "one": "aten::add", "other": "aten::add", "joined": "aten::cat", "unknown": "aten::add",
        "one too": "aten::cat",
    }  # fmt: skip
    assert found.of("one").gb_per_s(10_000) == pytest.approx(3 * NUM / 10_000)
    assert found.of("joined").gb_per_s(10_000) is None


@pytest.mark.parametrize("name", long_after(1, ["h100_timesformer", "mi300_owlv2"]))
def test_no_long_kernel_is_faster_than_memory(name: str, traces: Path) -> None:
    """Of those that take over 1 ms together, which are too large for a cache."""
    peak = {"h100_timesformer": 3350, "mi300_owlv2": 5300}[name]
    with ranks_of(traces / "kineto" / f"{name}.json.gz") as (rank, *_):
        found = launched_kernels.run(rank, rank.window)
        kernels = rank.operations.kernels
        spent = named_sums(kernels.name, kernels.length_ns, rank.kernel_names.__getitem__)
    rates = [
        rate
        for text, total_ns in spent.items()
        if total_ns > 1_000_000 and (rate := found.of(text).gb_per_s(total_ns)) is not None
    ]
    assert len(rates) >= 5
    assert all(rate < peak for rate in rates)
    assert max(rates) > 0.4 * peak
