"""Each remedy that a page lists is shown by a recording, and none is advised that is done already.

A new remedy needs a row here: the recording that shows it, best a real one.
"""

import gzip
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from sample_traces.simulator import simulate_run
from tests.reference.already import OF_WHAT_RECURS, Rows, contradictions, no_remedies, rows_of
from tests.support.traces import GPU_SAMPLES, SAMPLE_FOLDER, closed_analysis
from traceprof.analyses import registry
from traceprof.analyses.straggler import ADVICE, BECAUSE
from traceprof.ranks.lateness import OUTSIDE, SLOWER, SLOWER_COMPUTE

RECORDED: dict[str, tuple[str, ...]] = {
    "a100x4_ddp_nobroadcast_rank0.sqlite": (
        "optimizer.zero_grad(set_to_none=True) (the default from",
        "GradScaler reads once a",
        "Give NCCL fewer SMs:",
        "Let NCCL choose fewer",
        "Move the bytes without",
        "Halve the memory traffic:",
        "Move communication beside kernels",
    ),
    "cases/step7_evaluate.sqlite.gz": ("Evaluate less often, or let another process",),
    "cases/low_before_high.pt.trace.json.gz": (
        "The loader's workers are",
        "persistent_workers=True keeps the workers",
        "Choose when to collect garbage: gc.collect()",
        "Raise or remove the",
        "Give the job more",
        "Keep the total number",
        "Page faults and the",
        "The optimizer: torch.optim.AdamW(..., fused=True)",
    ),
    "cloverleaf_3.13.2.sqlite": (
        "pin it (cudaMallocHost, or",
        "Let streams wait for",
        "Copy with cudaMemcpyAsync, launch",
        "Find what the launching",
        "Pin the host's side",
        "Then cudaMemcpyAsync on a",
        "Keep what does not change on the GPU, and copy",
    ),
    "gpt2_result_2_7B_3.16.1.sqlite": (
        "Set-up happens once: look",
        "Functions are loaded when",
        "Nothing needs to be",
        "Read times of host",
    ),
    "h100x2_command_buffer_full.sqlite": ("keep what fits on",),
    "icon_3.17.1.sqlite": (
        "cudaMemPrefetchAsync on a second",
        "Launch several blocks for",
        "A sum, or another",
        "Kernels that do not",
        "Move the pages before the host",
        "Read results one iteration",
        "Take synchronizing calls between",
        "Move the pages before the kernel",
        "Fill the memory on",
        "Memory that one side",
    ),
    "jacobi_mpi": (
        "MPI with GPU buffers",
        "Check the slot while",
        "Bind each process to",
        "Do not let the",
    ),
    "kineto/HolisticTraceAnalysis_df_index_resolver_df_index_resolver.json.gz": (
        "Mixed precision: forward and loss under torch.autocast('cuda', dtype=torch.float16)",
        "DDP: smaller buckets, the",
        "Let DDP overlap: it",
        "Drop find_unused_parameters=True, or also",
        "Megatron: --overlap-grad-reduce; DeepSpeed: overlap_comm",
        "Record every rank and",
    ),
    "kineto/HolisticTraceAnalysis_nccl_parser_config_nccl_data.json.gz": (
        "Launch it before the",
        "Convolutions: see that torch.backends.cudnn.allow_tf32",
        "The host works on",
        "Logging, checkpoints and Python",
        "Changes of layout around",
    ),
    "kineto/HolisticTraceAnalysis_trace_diff_test_test.json.gz": (
        "Move work that does not need it behind",
        "start them earlier (DALI:",
    ),
    "kineto/TraceLens_sts_traces_mi300_ddp_resnet18_no_pool_train_resnet18.json.gz": (
        "PyTorch's cache of memory",
    ),
    "kineto/TraceLens_tests_traces_mi300_resnet_act_checkpoint.json.gz": (
        "DDP: give all-reduces more",
        "Send half the bytes:",
        "Reduce gradients less often:",
        "DistributedDataParallel(..., gradient_as_bucket_view=True) (torch 1.7",
        "avoid .contiguous(), .clone(), torch.cat and .copy_() of large tensors: write",
        "avoid .contiguous(), .clone(), torch.cat and .copy_() of large tensors",
        "Give each kernel more",
        "One kernel for many",
        "Give operations that do not depend on each other process",
        "Send to and receive",
        "Let communicators overlap: NCCL",
        "Send and receive outside",
        "Launch first what the",
        "torch.compile(model) (PyTorch 2.0) fuses",
    ),
    "kineto/bytedance_se": (
        "Fix the late rank",
        "Look on the timeline",
        "Split the batch into",
        "Give each stage several",
        "Move layers from the",
        "Find what held up",
        "Log tokens per rank",
        "Sequences: sort or pack",
        "Experts: raise the load-balancing",
    ),
    "kineto/bytedance_st": ("Find out why communication",),
    "kineto/mi300_owlv2.json.gz": ("Attention in one kernel,",),
    "no_metadata_2020_0886.sqlite": ("pin it (cudaMallocHost), cudaMemcpyAsync",),
    "pairs/a100_loader_0_baseline.sqlite": ("Let more processes load: DataLoader",),
    "pairs/a100_loader_3_dali_amp.sqlite": ("DALI: let its pipeline", "DALI: move what its"),
    "pairs/h100x2_per_layer_sync.sqlite": (
        "Send and receive with",
        "Call collectives with async_op=True,",
    ),
    "pairs/kineto_loader/resnet50_w0_a.pt.trace.json.gz": (
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True),",
        "Make loading cheaper: decode",
    ),
    "pairs/openacc/before.sqlite": (
        "copy with cudaMemcpyAsync on a second stream into",
        "Keep the data on the GPU",
        "OpenACC: async(queue) on kernels",
        "Launch fewer, larger kernels: fuse",
    ),
    "pairs/v100_mpas_1_async.sqlite": ("copy with cudaMemcpyAsync on a second stream while",),
    "kineto/dlrm_8ranks": ("Look at its host: other",),
    "runs/cpu-straggler-unnamed": ("Name what the step",),
    "runs/straggler-data-loading": ("Check whether its node",),
    "rtx3090x9_3nodes_tree": ("Look at what the program does in the longest gap: a sleep",),
    "streams_3.1.2.sqlite": ("Look at what the program does in the longest gap: set-up",),
    "rtx3090x6_2nodes_ring": ("Send less: fewer bytes", "NCCL creates a communicator"),
    "sample_traces/compute-stream-collective.sqlite": ("Call collectives with async_op=True and",),
    "sample_traces/gloo.sqlite": (
        "Give each process one",
        "Give each rank its",
        "Merge small operations, since",
        "Run fewer processes on",
        "On one machine let",
        "If messages must stay",
    ),
    "sample_traces/launch-queue-stall.sqlite": (
        "Launch what other streams,",
        "Shorten what holds the",
        "Keep the host from",
    ),
    "sample_traces/link-counters.sqlite": (
        "Compare the ranks first:",
        "Check with nccl-tests and",
        "Large operations at a",
    ),
    "sample_traces/p2p-slower-than-copy.sqlite": (
        "Pipelines: more micro-batches, or",
        "Within one machine, send",
        "Find out why: NCCL_DEBUG=INFO",
        "Have NCCL use the",
        "Give neighbouring stages GPUs",
        "Its kernels have more",
    ),
    "sample_traces/peer-copy-through-host.sqlite": (
        "pin it (DataLoader(pin_memory=True)), and",
        "Check whether the GPUs",
        "On servers turn PCIe",
        "GeForce boards have no",
        "If it must go",
    ),
    "sample_traces/pipeline-bubble.sqlite": ("Post receives before their",),
    "sample_traces/sleeping-checkpoint.sqlite": ("If this is a",),
    "sample_traces/small-collectives.sqlite": (
        "DDP: larger buckets (bucket_cap_mb,",
        "FSDP2: apply fully_shard to",
        "Reduce metrics once per",
        "If operations must stay",
    ),
    "sample_traces/training.sqlite": ("Give the GPU something",),
    "sample_traces/uneven-clock.sqlite": (
        "Find what limits its",
        "Record clocks, too, to",
        "Look for another process",
        "Run the job on",
    ),
    "tests/gpu/recordings/empty_cache.pt.trace.json.gz": (
        "PyTorch's allocator ran out",
        "In the first steps",
    ),
    "tests/gpu/recordings/h200/metrics.pt.trace.json.gz": (
        "read results late and",
        "Mixed precision: forward and loss under torch.autocast('cuda', dtype=torch.bfloat16)",
        "Keep FP32 and multiply",
        "Launch many kernels at once with CUDA",
        "Launch fewer, larger kernels: torch.compile",
        "torch.profiler itself takes time",
        "Take .item(), .cpu(), print(tensor),",
        "Read results late: copy",
        "Keep losses and metrics",
        "Take torch.cuda.synchronize() and Event.synchronize()",
        "Copy from pinned memory",
        "Copy the next batch",
        "Pin buffers that are",
        "Keep what does not change on the GPU, create tensors",
    ),
    "tests/gpu/recordings/h200/offload.pt.trace.json.gz": ("read results late: copy",),
    "tests/gpu/recordings/models/gpt2_half.pt.trace.json.gz": (
        "Attention: scaled_dot_product_attention takes the",
    ),
    "tests/gpu/recordings/models/save.pt.trace.json.gz": ("Save in the background, or less",),
    "tests/gpu/recordings/prefetch.pt.trace.json.gz": (
        "copy the next batch on a torch.cuda.Stream()",
        "Launch fewer, larger kernels: the GPU",
        "Move fewer bytes over",
        "If gradients or activations",
    ),
    "tests/support/recordings/two_cpu_ranks-rank1.pt.trace.json.gz": (
        "Look at the slowest",
        "Start collectives with async_op=True,",
    ),
    "v100x4_mpi_peer_copies.sqlite": ("Let MPI go on", "Take the host out", "Where ranks wait for"),
    "vector_add_streams.sqlite": (
        "Launch many kernels at once with a",
        "start them earlier, with",
        "launch the next kernels",
    ),
}
"""Recordings with the begins of remedies that they show."""
STRAGGLERS = {
    SLOWER: "sample_traces/uneven-clock.sqlite",
    "launch": "kineto/dlrm_8ranks",
    "sync": "runs/straggler-sync",
    "blocking copy": "runs/straggler-copy",
    "data loading": "runs/straggler-data-loading",
    "waiting": "jacobi_mpi",
    SLOWER_COMPUTE: "runs/cpu-straggler-slow-compute",
    OUTSIDE: "runs/cpu-straggler-unnamed",
}
"""Causes of a late rank that have remedies, each with a run that shows it."""
MADE_FOR_TESTS = (
    "FSDP2: prefetch with set_modules_to_forward_prefetch",
    "let the kernel that",
    "Allocate before the loop",
    "Otherwise use cudaMallocAsync and",
    "Let the pool of memory",
    "Take the sleep out",
    "Let torch.compile take in",
    "cuBLAS: CUBLAS_COMPUTE_32F_FAST_TF32, or cublasSetMathMode(handle,",
    "Where the accuracy allows",
    "TensorFlow: tf.keras.mixed_precision.set_global_policy('mixed_bfloat16'); JAX: arrays",
)
"""The begins of remedies that no recording here shows.

The first waits for one whose all-gathers are long: in the recordings of FSDP here, copies from host
memory or a late rank take more. The last three are for programs of other libraries that multiply in
FP32. The others were seen in public ones, on T4s: a clustering, and a solver whose first
cudaMallocAsync after each synchronization takes 1.07 ms; on an H100, a program that sleeps for one
second beside a kernel of 0.81; on an MI300X, Flux and Stable Diffusion 3.5.
"""
PROFILES = {
    "tests/gpu/recordings/models/workers.pt.trace.json.gz": "channels last",
    "cases/gb10_graphs_one_in_ten.json.gz": "torch.compile runs",
    "cases/gb10_graphs_whole.json.gz": "graphs launch",
    "cases/low_before_high.pt.trace.json.gz": "only the GradScaler reads",
    "kineto/HolisticTraceAnalysis_nccl_parser_config_nccl_data.json.gz": "TF32 multiplies",
    "kineto/HolisticTraceAnalysis_trace_diff_test_test.json.gz": "another optimizer is fused",
    "kineto/b200_training_step.json.gz": "PyTorch's optimizer is fused",
    "kineto/bytedance_st": "autocast runs",
    "kineto/dlrm_8ranks": "nothing is allocated twice",
    "kineto/h100_timesformer.json.gz": "autocast runs",
    "kineto/mi300_owlv2.json.gz": "autocast runs",
    "kineto/noise/h100_a1.pt.trace.json.gz": "TF32 multiplies",
    "kineto/param_resnet.json.gz": "workers load",
    "kineto/sglang_prefill_decode.json.gz": "it serves",
    "kineto/vllm_decode_graphs.json.gz": "attention is one kernel",
    "pairs/kineto_loader/resnet50_w4_a.pt.trace.json.gz": "nothing is reduced",
    "pairs/v100_mpas_1_async.sqlite": "all memory is pinned",
}
"""Recordings with one of the facts that each proves to be done already."""


def plain(text: str) -> str:
    return re.sub(r"[`*\s]+", " ", text).strip()


def remedies() -> list[str]:
    """Return all remedies of the pages of findings, by program where that makes them two."""
    found = []
    modules = (one for one in vars(registry).values() if isinstance(one, ModuleType))
    for page in (module.PAGE for module in modules if hasattr(module, "PAGE")):
        for item in (one for text in page.values() for one in re.split(r"(?m)^[*-] ", text)[1:]):
            line = re.sub(r" \((PyTorch|other programs)\)$", "", item.split("\n\n")[0].strip())
            parts = re.split(r"\. (?:PyTorch|Elsewhere): ", line)
            found += [plain(part) for part in parts[len(parts) > 1 :]]
    return list(dict.fromkeys(found))


NAMES = (
    r"\$\w+|…|communication(?= is far)|the late rank(?= first)|each operation after a gap"
    r"|in the longest gap"
    r"|collectives with async_op=True, sends and receives with isend and irecv"
    r"|\bcudaMalloc\b|PYTORCH_NO_CUDA_MEMORY_CACHING"
)
"""What a page says in place of names of the trace."""


def test_each_remedy_has_a_trace_that_shows_it() -> None:
    known = [begin for begins in RECORDED.values() for begin in begins] + [*MADE_FOR_TESTS]
    listed = {begin: [one for one in remedies() if one.startswith(begin)] for begin in known}
    assert all(listed.values()), "no page has it any more"
    assert {*remedies()} == {one for of_begin in listed.values() for one in of_begin}


def path_of(traces: Path, recording: str, folder: Path) -> Path:
    """Return a recording, or write the run of the simulator that it names to a folder."""
    kind, _, name = recording.partition("/")
    if kind == "runs":
        simulate_run(name, folder / name, seed=4)
        return folder / name
    here = Path(__file__).parents[2] / recording
    return here if here.exists() else traces / recording


@pytest.mark.long
@pytest.mark.parametrize("recording", RECORDED)
def test_recordings_show_remedies(traces: Path, tmp_path: Path, recording: str) -> None:
    path = path_of(traces, recording, tmp_path)
    if recording.endswith(".sqlite.gz"):
        packed, path = path, tmp_path / "unpacked.sqlite"
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    analysis = closed_analysis(path)
    shown = "\n".join(plain(line) for one in analysis.findings for line in one.advice)
    begins = RECORDED[recording]
    of_recording = [one for one in remedies() if one.startswith(begins)]
    assert len(of_recording) >= len(begins)
    # Of each the longest part that does not depend on a trace.
    fragments = [max(re.split(NAMES, one), key=len).strip() for one in of_recording]
    assert not [one for one in fragments if one not in shown]


@pytest.mark.long
@pytest.mark.parametrize("cause", STRAGGLERS)
def test_late_ranks_show_the_remedies_of_their_cause(
    traces: Path, tmp_path: Path, cause: str
) -> None:
    findings = closed_analysis(path_of(traces, STRAGGLERS[cause], tmp_path)).findings
    late = [one for one in findings if one.id == "straggler"]
    assert {one.metrics["cause"] for one in late} == {cause}
    assert {one.advice for one in late} == {ADVICE[cause]}


def test_each_cause_of_a_late_rank_with_remedies_has_a_run() -> None:
    assert STRAGGLERS.keys() == ADVICE.keys()
    assert ADVICE.keys() < BECAUSE.keys()


def reports_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(one for one in path.iterdir() if one.is_file())


def against(path: Path) -> list[tuple[str, str]]:
    """What is advised against what the reports of a run prove, each after the reason."""
    advice = [line for one in closed_analysis(path).findings for line in one.advice]
    return contradictions(map(rows_of, reports_of(path)), advice)


@pytest.mark.parametrize("sample", GPU_SAMPLES)
def test_samples(sample: Path) -> None:
    assert not against(sample)


@pytest.mark.long
def test_real_exports(real_trace: Path) -> None:
    assert not against(real_trace)


@pytest.mark.long
@pytest.mark.parametrize("recording", PROFILES)
def test_recordings(traces: Path, recording: str, tmp_path: Path) -> None:
    path = path_of(traces, recording, tmp_path)
    assert PROFILES[recording] in no_remedies(rows_of(reports_of(path)[0]))
    assert not against(path)


def test_what_speaks_against_advice_is_found() -> None:
    """The same report says no more than that all memory is pinned: then nobody has to pin it."""
    sample = SAMPLE_FOLDER / "pageable-copy.sqlite"
    advice = [line for one in closed_analysis(sample).findings for line in one.advice]
    rows = rows_of(sample)
    assert not contradictions([rows], advice)
    damaged = rows._replace(from_host=Counter({1: 1}))
    assert {why for why, _ in contradictions([damaged], advice)} == {"all memory is pinned"}
    assert not contradictions([damaged, rows], advice)  # another rank's memory is not


def test_each_fact_speaks_against_a_remedy() -> None:
    names = "sm90_xmma_fprop_nhwc_tf32", "flash_fwd_kernel", "AdamFunctor<1>", "triton_poi_fused_0"
    kernels = Counter(dict.fromkeys(names, 9))
    rows = Rows(kernels, 9, 1, 1, 1, Counter({1: 1}), Counter(), Counter())
    ranges = ["_MultiProcessingDataLoaderIter.__next__", "execute_context_0(0)_generation_1(1)"]
    others = rows._replace(
        kernels=Counter({"FusedAdamMathFunctor": 1, "amp_update_scale": 1}), labels=Counter(ranges)
    )
    once = {kind: Counter({1: 5}) for kind in OF_WHAT_RECURS} | {"steps": Counter(range(3))}
    others = others._replace(in_step=once)
    facts = {**no_remedies(rows), **no_remedies(others)}
    assert len([why for why in facts if why.endswith("in one step only")]) == len(OF_WHAT_RECURS)
    assert facts.keys() >= {*PROFILES.values()}
    for why, pattern in facts.items():
        assert [line for line in remedies() if pattern.search(line)], why
