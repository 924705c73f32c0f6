"""The places of launches and times, and what is a step: held to a second implementation."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.reference.nsight_export import export_of
from tests.reference.places import place_at
from tests.support.builders import TraceBuilder, global_tid, solver
from tests.support.profiler_events import annotation, call, event, kernel, write
from tests.support.traces import closed_analysis, ranks_of
from traceprof.documents.analysis.records import document
from traceprof.host.places import PLACES, PlaceKind, kind_of, layers_of, places, silence_of
from traceprof.host.units import StepUnit

US, MS = 1_000, 1_000_000
MAIN = 4242, 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", PlaceKind.LOADER),
        ("enumerate(DataPipe)#ZipperIterDataPipe", PlaceKind.LOADER),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", PlaceKind.LOADER),
        ("data loading", PlaceKind.LOADER),
        ("garbage collection", PlaceKind.COLLECTION),
        ("save checkpoint", PlaceKind.CHECKPOINT),
        ("save-checkpoint", PlaceKind.CHECKPOINT),
        ("load_model", PlaceKind.CHECKPOINT),
        ("evaluate", PlaceKind.EVALUATION),
        ("[pl][profile]run_evaluation", PlaceKind.EVALUATION),
        ("[pl][profile][Strategy]SingleDeviceStrategy.validation_step", PlaceKind.EVALUATION),
        ("compile_fx.<locals>.fw_compiler_base (dynamo_timed)", PlaceKind.COMPILE),
        ("## metrics:publish ##", PlaceKind.LOGGING),
        ("GradScaler.unscale_", PlaceKind.GRAD_SCALER),
        ("Optimizer.step#AdamW.step", PlaceKind.OPTIMIZER),
        ("Optimizer.zero_grad#SGD.zero_grad", PlaceKind.OPTIMIZER),
        ("optimizer step", PlaceKind.OPTIMIZER),
        ("FSDP::pre_forward (layers.7)", PlaceKind.FSDP),
        ("FullyShardedDataParallel._pre_forward", PlaceKind.FSDP),
        ("DistributedDataParallel.forward", PlaceKind.DDP),
        ("DeepSpeedEngine.forward", PlaceKind.DEEPSPEED),
        ("PartitionedParameterCoordinator.fetch_sub_module", PlaceKind.DEEPSPEED),
        ("backward-compute", PlaceKind.BACKWARD),
        ("## backward ##", PlaceKind.BACKWARD),
        ("forward", PlaceKind.FORWARD),
        ("nn.Module: Linear_3", PlaceKind.MODULE),
        ("module encoder.layers.3", PlaceKind.MODULE),
        ("Jacobi solve", PlaceKind.OTHER),
        ("self_attention", PlaceKind.OTHER),
    ],
)
def test_the_table_of_frameworks(name: str, kind: PlaceKind) -> None:
    assert kind_of(name) is kind


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm, seq = 7",
        "AddmmBackward0",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "c10d::allreduce_",
        "ncclAllReduce",
        "nccl:all_reduce",
        "all_reduce bytes=1024 group=0 size=2",
        "bucket 3",
        "MPI_Send",
        "cublasGemmEx",
        "ProfilerStep#3",
        "step 12",
        "{'mod': 'Tensor'}",
    ],
)
def test_operators_libraries_and_steps_are_no_places(name: str, tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx(name, 0, 90).nvtx("mine", 100, 200).kernel(150, 160)
    with ranks_of(trace.write(tmp_path / "t.sqlite")) as (rank,):
        assert [*places(rank).names] == ["mine"]


@pytest.mark.parametrize("seed", range(6))
def test_agreement_with_the_reference(seed: int, tmp_path: Path) -> None:
    """Nested ranges on several threads, and times in and outside of them."""
    source, trace = random.Random(seed), TraceBuilder().kernel(0, MS)
    names = ["forward", "backward", "aten::mul", "evaluate", "step 3", "data loading", "layer 7"]
    for tid in (1000, 1001, 1002)[: 1 + seed % 3]:
        spans = [(0, 900)]
        for _ in range(12):
            low, high = source.choice(spans)
            first, last = (
                sorted(source.sample(range(low, high + 1), 2)) if high > low + 2 else (low, high)
            )
            spans += [(first, last)]
            if all(last <= a or b <= first or (a <= first and last <= b) for a, b in spans):
                trace.nvtx(source.choice(names), first * US, last * US, tid=tid)
    path = trace.write(tmp_path / "t.sqlite")
    export = export_of(path)
    with ranks_of(path) as (rank,):
        found = places(rank)
        for tid in (1000, 1001, 1002, 1003):
            thread = global_tid(tid=tid)
            times = np.array([*range(0, 900_000, 7001)], np.int64)
            at = found.at(np.full(len(times), thread), times)
            told = [found.names[number] if number >= 0 else None for number in at.tolist()]
            expected = [place_at(export, rank.process, thread, time) for time in times.tolist()]
            assert told == expected


def test_copies_inside_fsdp_are_of_its_parameters(tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx("FSDP::pre_forward (blocks.3)", 0, 100 * US)
    trace.memcpy(20 * US, 30 * US, launch=(10 * US, 12 * US)).kernel(MS, 2 * MS)
    with ranks_of(trace.write(tmp_path / "t.sqlite")) as (rank,):
        assert rank.calls is not None
        call_of = rank.launched_by[1]
        found = places(rank)
        [at] = found.at(rank.calls.thread[call_of], rank.calls.start_ns[call_of]).tolist()
        assert found.names[at] == "FSDP::pre_forward (blocks.3)"
        assert found.kinds[at] is PlaceKind.FSDP


def test_the_range_of_another_thread_tells_of_a_silent_one(tmp_path: Path) -> None:
    """A loader's own thread does not: it says nothing of the thread that launches."""
    trace = TraceBuilder().kernel(0, MS).kernel(20 * MS, 21 * MS, launch=(19 * MS, 19 * MS + 1))
    trace.nvtx("backward", 2 * MS, 4 * MS, tid=7).nvtx("data loading", 5 * MS, 9 * MS, tid=8)
    with ranks_of(trace.write(tmp_path / "t.sqlite")) as (rank,):
        silence = silence_of(rank, global_tid())
        assert [*zip(silence.start_ns, silence.end_ns, strict=True)] == [(2 * MS, 4 * MS)]


def test_a_range_around_whole_steps_says_nothing(tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx("epoch 1", 0, 50 * MS)
    for number in range(5):
        at = MS + 10 * MS * number
        trace.nvtx(f"step {number}", at, at + 9 * MS).kernel(at + MS, at + 2 * MS)
        trace.nvtx("forward", at, at + 3 * MS)
    with ranks_of(trace.write(tmp_path / "t.sqlite")) as (rank,):
        assert silence_of(rank, global_tid()).measure_ns == 15 * MS


def layered(
    numbers: list[int], tmp_path: Path, name: str = "FSDP::pre_forward (blocks.{}.wrapped)"
) -> Path:
    trace = solver(len(numbers), ("gemm", "norm", "gemm", "update"))
    starts = sorted(row["start"] for row in trace._rows["CUPTI_ACTIVITY_KIND_RUNTIME"])  # type: ignore[type-var]
    for number, start in zip(numbers, starts[::4], strict=True):
        assert isinstance(start, int)
        trace.nvtx(name.format(number), start, start + 10)
    return trace.write(tmp_path / "t.sqlite")


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([*range(3, 23)], (4, 22)),  # the first one begins before the first period
        ([*range(22, 2, -1)], (3, 21)),  # a backward pass
        ([7] * 20, None),
        ([4, 11, 2, 9, 16, 5, 13, 1, 18, 8, 3, 17, 10, 6, 15, 12, 0, 14, 19, 7], None),
    ],
)
def test_periods_that_are_layers(
    numbers: list[int], expected: tuple[int, int] | None, tmp_path: Path
) -> None:
    path = layered(numbers, tmp_path)
    with ranks_of(path) as (rank,):
        found = layers_of(rank)
        assert (found and (found.first, found.last)) == expected
    headline = document(closed_analysis(path).result).headline
    assert headline.unit is (StepUnit.ITERATION if expected is None else StepUnit.LAYER)
    assert headline.layers == expected


@pytest.mark.parametrize(
    ("name", "is_layer"),
    [
        ("transformer.h.{}", True),
        ("nn.Module: LlamaDecoderLayer_{}", True),
        ("layers[{}]", True),
        ("token_{}_processing", False),
        ("batch {}", False),
        ("micro-batch {}", False),
        ("request #{}", False),
    ],
)
def test_what_counts_up_but_is_no_layer(name: str, is_layer: bool, tmp_path: Path) -> None:
    """A pass of a token holds all layers of the model."""
    headline = document(closed_analysis(layered([*range(20)], tmp_path, name)).result).headline
    assert headline.unit is (StepUnit.LAYER if is_layer else StepUnit.ITERATION)


def test_a_comma_in_a_name_does_not_end_it(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 100)
    trace.nvtx("load shard 3, rows = 7", 0, 10).nvtx("mine, seq = 7, sizes = [[2, 2]]", 20, 30)
    with ranks_of(trace.write(tmp_path / "t.sqlite")) as (rank,):
        assert {*places(rank).names} == {"load shard 3, rows = 7", "mine"}


@pytest.mark.parametrize(
    ("name", "unit", "tokens", "sequences"),
    [
        ("execute_context_0(0)_generation_4(4)", "decode", 4, 4),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk5sqsq3sqsk5)",
            "decode",
            32,
            32,
        ),
        ("execute_context_2(512)_generation_30(30)", "prefill", 542, 32),
        ("step[DECODE bs=32 toks=32]", "decode", 32, 32),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15360, 15),
        ("step 7", "step", None, None),
    ],
)
def test_passes_of_servers(
    name: str, unit: str, tokens: int | None, sequences: int | None, tmp_path: Path
) -> None:
    events = []
    for number in range(6):
        begin = 1000 * (number + 1)
        events += [
            annotation(name, begin, begin + 900),
            call(begin + 10, begin + 15, number=number + 1),
            kernel(begin + 20, begin + 1020, number=number + 1),
        ]
    headline = document(closed_analysis(write(tmp_path / "t.json", events)).result).headline
    assert (headline.unit.value, headline.sequences) == (unit, sequences)
    per_s = None if tokens is None else pytest.approx(tokens * 1000, rel=0.01)
    assert headline.tokens_per_s == per_s


def test_modules_and_loaders_of_python_are_places(tmp_path: Path) -> None:
    events = [
        kernel(100, 200),
        call(80, 85),
        event("python_function", "nn.Module: Linear_0", 70, 20, MAIN),
        event("python_function", "vllm/compilation/wrapper.py(7): __call__", 71, 18, MAIN),
        event("python_function", "torch/amp/grad_scaler.py(400): step", 95, 9, MAIN),
    ]
    with ranks_of(write(tmp_path / "t.json", events)) as (rank,):
        found = places(rank)
        assert {*found.names} == {"nn.Module: Linear_0", "amp/grad_scaler.py(400): step"}


def test_no_digit_in_the_pattern_so_that_texts_are_not_read_again() -> None:
    """A report keeps texts with their digits alike: a pattern with digits has all of them read."""
    assert not any(letter.isdigit() for letter in PLACES.pattern)
