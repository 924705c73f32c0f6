"""Chains of kernels that are bound by memory."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from tests.reference.nsight_export import export_of
from tests.reference.spans import Span
from tests.reference.streams import read
from tests.reference.unfused import OPTIMIZER_RANGE, expected
from tests.support.builders import TraceBuilder
from tests.support.kept_claims import Kept
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.selection import few_and_many, long_after
from tests.support.traces import GPU_SAMPLES, SAMPLE_FOLDER, ranks_of
from traceprof.analyses import unfused_kernels
from traceprof.analyses.unfused_kernels import UnfusedKernelsResult
from traceprof.kernel_names.categories import kernel_kind
from traceprof.run.rank import Window

AT = "void at::native::"
MUL = f"{AT}vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int)"
ADD = f"{AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
RANDOM = f"{AT}distribution_elementwise_grid_stride_kernel<float, 4>(long)"
SUM = f"{AT}reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor>>(T3)"
NORM = f"{AT}vectorized_layer_norm_kernel<float, float>(int)"
DIVIDE = f"{AT}vectorized_elementwise_kernel<4, at::native::addcdiv_cuda_kernel(float)>(int)"
LAYOUT = "void cudnn::ops::nchwToNhwcKernel<float>(cudnn::ops::nchw2nhwc_params_t<float>)"
SGEMM = "ampere_sgemm_128x64_tn"
TRITON = "triton_poi_fused_add_mul_0"
ADAM = f"{AT}multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float>>(T1)"
LISTS = [
    f"{AT}multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<{of}>>(T1)"
    for of in ("mul", "add", "sqrt")
]
SOFTMAX = f"{AT}cunn_SoftMaxForward<8, float, float, float, at::native::SoftMaxForwardEpilogue>(T4)"
BACK = f"{AT}cunn_SoftMaxBackward<8, float, float, float, at::native::SoftMaxBackwardEpilogue>(T1)"
LOSS = SOFTMAX.replace("::SoftMaxF", "::LogSoftMaxF")
SHORT = "void softmax_warp_{}<float, c10::complex<float>, float, 6, {}, false>(float*)"
NAMES = (
    *(MUL, ADD, SUM, NORM, DIVIDE, LAYOUT, SGEMM, TRITON, ADAM, *LISTS),
    *(SGEMM, SGEMM, SGEMM, SOFTMAX, BACK, LOSS, SHORT.format("forward", "false")),
)


def category(name: str) -> str:
    return str(kernel_kind(name, communicates=False).category)


def optimizer_spans(path: Path, process: int) -> list[Span] | None:
    ranges = export_of(path).ranges.get(process, [])
    spans = [(one.start, one.end) for one in ranges if OPTIMIZER_RANGE.fullmatch(one.name)]
    return spans or None


def assert_agreement(
    path: Path, window: tuple[int, int] | None = None
) -> list[UnfusedKernelsResult]:
    results = []
    with ranks_of(path) as ranks:
        for rank, plain in zip(ranks, read(path), strict=True):
            chosen = Window(*window) if window else rank.window
            result = unfused_kernels.run(rank, chosen)
            results.append(result)
            steps = [] if rank.steps is None else rank.steps.start_ns.tolist()
            numbers = expected(
                plain, (chosen.start_ns, chosen.end_ns), category, steps,
                optimizer_spans(path, plain.process), is_whole=chosen.is_whole,
            )  # fmt: skip
            measured = {**result.metrics.by_name(), "saved_ns": result.saved_ns}
            assert {name: measured[name] for name in numbers._fields} == numbers._asdict()
            assert result.saved_by_optimizer_ns <= result.metrics.optimizer_ns
    return results


def row(*names: str, each: int = 100, builder: TraceBuilder | None = None) -> TraceBuilder:
    """Run kernels on one stream, the first for 100 ns, each next one for 10 ns longer."""
    builder = builder or TraceBuilder()
    for index, name in enumerate(names):
        builder.kernel(1000 * index, 1000 * index + each + 10 * index, name)
    return builder


@pytest.mark.parametrize("seed", long_after(2, range(4)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    builder = TraceBuilder()
    for index in range(400):
        start = 1000 * index + chance.randrange(-500, 500)
        stream, pid = chance.choice([7, 7, 8]), chance.choice([1, 1, 2])
        end = start + chance.randrange(4000)  # no two passes take equally long
        if chance.random() < 0.05:
            builder.memcpy(start, end, stream=stream, pid=pid)
            continue
        size = chance.choice([1, 2])
        name = chance.choice(NAMES)
        builder.kernel(start, end, name, grid=(size, 1, 1), stream=stream, pid=pid)
    if seed % 2:
        builder.nvtx("optimizer step", 100_000, 140_000, pid=1)
        builder.nvtx("optimizer step", 250_000, 900_000, pid=1)
    path = builder.write(tmp_path)
    assert all(result.metrics.num_chains for result in assert_agreement(path))
    first, last = sorted(chance.randrange(400_000) for _ in range(2))
    assert_agreement(path, (first, last))


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert_agreement(sample)


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    assert_agreement(real_trace)


def test_an_optimizer_that_is_a_loop_over_parameters_is_found(traces: Path) -> None:
    with ranks_of(traces / "pairs" / "a100_loader_3_dali_amp.sqlite") as (rank,):
        result = unfused_kernels.run(rank, rank.window)
    # 24 parameters, 8 kernels each, in 29 steps: 7.36 ms of a step.
    assert result.metrics.optimizer_ns / 29 == pytest.approx(7.6e6, rel=0.05)
    assert result.metrics.longest_chain == 192


def test_ranges_of_the_optimizer_in_a_process_without_calls_launch_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    copyfile(SAMPLE_FOLDER / "training.sqlite", path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    with ranks_of(path) as ranks:
        for rank in ranks:
            assert unfused_kernels.run(rank, rank.window).metrics.optimizer_ns == 0


# -- bytes, where torch.profiler recorded shapes --------------------------------------------------

ITEM = {"float": 4, "double": 8}
KERNEL_OF = {"aten::add": ADD, "aten::mul": MUL, "aten::sum": SUM, "aten::copy_": ADD}


def kept_by_bytes(chain: list[tuple[str, str, int, int, int]]) -> float:
    """The time of the bytes that the first reads and the last writes, by hand.

    Each of the chain is an operator, its type, its elements, its time, and how many kernels it has.
    """

    def parts(name: str, kind: str, num: int) -> tuple[int, int]:
        size = num * ITEM[kind]
        if name == "aten::sum":  # the output is small
            return size, 0
        return (num * ITEM["float"] if name == "aten::copy_" else 2 * size), size

    reads, writes = parts(*chain[0][:3])
    first = chain[0][3] * reads / (reads + writes) if chain[0][4] == 1 else 0
    reads, writes = parts(*chain[-1][:3])
    last = chain[-1][3] * writes / (reads + writes) if chain[-1][4] == 1 else 0
    return first + last


def profiled(chain: list[tuple[str, str, int, int, int]], *, has_shapes: bool) -> list[Any]:
    events: list[Any] = [call(1, 2, number=1), kernel(10, 20, name=SGEMM, number=1)]
    now, number = 1000, 2
    for place, (name, kind, num, length, num_kernels) in enumerate(chain):
        types = [kind, "float"] if name == "aten::copy_" else [kind, kind]
        types = types[:1] if name == "aten::sum" else types
        shapes = {"Input Dims": [[num]] * len(types), "Input type": types} if has_shapes else {}
        at = 100 + 50 * place
        events.append(event("cpu_op", name, at, 40, (PID, 1), **shapes))
        for one in range(num_kernels):
            events.append(call(at + 5 * one + 1, at + 5 * one + 2, number=number))
            events.append(kernel(now, now + length, name=KERNEL_OF[name], number=number))
            now, number = now + length + 1, number + 1
    return [*events, call(900, 901, number=900), kernel(now, now + 9, name=SGEMM, number=900)]


def saved_us(path: Path) -> float:
    with ranks_of(path) as (rank,):
        return unfused_kernels.run(rank, rank.window).saved_ns / 1000


@few_and_many(40, 80)
def test_bytes_of_random_chains_by_hand(num_examples: int, tmp_path: Path) -> None:
    random_ = random.Random(7)
    num_less = 0
    for _ in range(num_examples):
        chain = [
            (random_.choice([*KERNEL_OF]), random_.choice([*ITEM]), random_.randint(1, 9) << 16,
             random_.randint(5, 90), random_.choice((1, 1, 1, 2)))
            for _ in range(random_.randint(3, 6))
        ]  # fmt: skip
        plain, with_bytes = (
            saved_us(write(tmp_path / "t.json", profiled(chain, has_shapes=has_shapes)))
            for has_shapes in (False, True)
        )
        total = sum(length * count for *_, length, count in chain)
        least = max(total - plain, kept_by_bytes(chain))
        assert with_bytes == pytest.approx(max(total - least, 0), abs=0.01)
        num_less += with_bytes < plain
    assert 3 < num_less < num_examples


def spaced(*names: str, length: int = 100, gap: int = 0) -> TraceBuilder:
    builder = TraceBuilder()
    for index, name in enumerate(names):
        begin = (length + gap) * index
        builder.kernel(begin, begin + length, name)
    return builder


def attention_after(gap: int) -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 100, SGEMM).kernel(200, 300, SOFTMAX)
    return builder.kernel(300 + gap, 400 + gap, SGEMM)


PROGRAMS = {
    # Attention is a softmax between multiplications, without a long gap.
    "a softmax": row(SGEMM, SOFTMAX, SGEMM),
    "a softmax's backward": row(SGEMM, SGEMM, BACK, MUL, SGEMM, SGEMM),
    "a softmax of a fresh matrix": row(SGEMM, SOFTMAX, RANDOM, SGEMM),
    "a classifier's loss": row(SGEMM, LOSS, SGEMM),
    "a log softmax": row(SGEMM, SHORT.format("forward", "true"), SGEMM),
    "a softmax with a gap": attention_after(1_000_000),
    "a softmax with a long gap": attention_after(1_000_001),
    # 3 of 4 kernels are a chain: 100 + 110 of (3000 + 130) ns could go.
    "a chain": row(MUL, ADD, LAYOUT, SGEMM),
    "some changes of layout": row(MUL, ADD, SUM, LAYOUT, MUL, SGEMM),
    # Nothing of a chain in it is counted twice, and advice begins with what costs more.
    "attention": row(SGEMM, MUL, SOFTMAX, ADD, SGEMM, LAYOUT),
    "attention alone": row(SGEMM, SOFTMAX, SGEMM, *[SGEMM] * 9),
    "little attention": row(*[MUL, ADD, SUM] * 9, SGEMM, SOFTMAX, SGEMM),
    "without gaps": spaced(MUL, ADD, SUM),
    "an optimizer": spaced(MUL, ADD, DIVIDE),
    # Beside a fused optimizer they are of clipping, which it does not hold.
    "beside a fused optimizer": spaced(MUL, ADD, DIVIDE, SUM, ADAM),
    "with gaps": spaced(MUL, ADD, SUM, gap=500),
    "with gaps longer than a launch": spaced(MUL, ADD, SUM, length=300_000, gap=600_000),
    # Who writes the kernels fuses them by hand, or has a compiler that did.
    "not PyTorch": row(*(f"EigenMetaKernel<{index}>" for index in range(3))),
    # In silu(x @ a) * (x @ b), a multiplication of matrices parts what one kernel can do.
    "what compilers fuse besides": row(SGEMM, MUL, MUL, SGEMM, MUL, SGEMM, NORM, ADD, SUM, SGEMM),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    (result,) = assert_agreement(PROGRAMS[name].write(tmp_path))
    kept([result.metrics, *unfused_kernels.findings(result)])
