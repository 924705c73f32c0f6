"""Each remedy that a page lists is shown by a recording, and none is advised that is done already.

A new remedy needs a recording here that shows it, best a real one.
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

RECORDED = (
    "a100x4_ddp_nobroadcast_rank0.sqlite",
    "cases/low_before_high.pt.trace.json.gz",
    "cases/step7_evaluate.sqlite.gz",
    "cloverleaf_3.13.2.sqlite",
    "gpt2_result_2_7B_3.16.1.sqlite",
    "h100x2_command_buffer_full.sqlite",
    "icon_3.17.1.sqlite",
    "jacobi_mpi",
    "kineto/HolisticTraceAnalysis_df_index_resolver_df_index_resolver.json.gz",
    "kineto/HolisticTraceAnalysis_nccl_parser_config_nccl_data.json.gz",
    "kineto/HolisticTraceAnalysis_trace_diff_test_test.json.gz",
    "kineto/TraceLens_sts_traces_mi300_ddp_resnet18_no_pool_train_resnet18.json.gz",
    "kineto/TraceLens_tests_traces_mi300_resnet_act_checkpoint.json.gz",
    "kineto/bytedance_se",
    "kineto/bytedance_st",
    "kineto/dlrm_8ranks",
    "kineto/mi300_owlv2.json.gz",
    "no_metadata_2020_0886.sqlite",
    "pairs/a100_loader_0_baseline.sqlite",
    "pairs/a100_loader_3_dali_amp.sqlite",
    "pairs/h100x2_per_layer_sync.sqlite",
    "pairs/kineto_loader/resnet50_w0_a.pt.trace.json.gz",
    "pairs/openacc/before.sqlite",
    "pairs/v100_mpas_1_async.sqlite",
    "rtx3090x6_2nodes_ring",
    "rtx3090x9_3nodes_tree",
    "runs/cpu-straggler-unnamed",
    "runs/straggler-data-loading",
    "sample_traces/compute-stream-collective.sqlite",
    "sample_traces/gloo.sqlite",
    "sample_traces/launch-queue-stall.sqlite",
    "sample_traces/link-counters.sqlite",
    "sample_traces/p2p-slower-than-copy.sqlite",
    "sample_traces/peer-copy-through-host.sqlite",
    "sample_traces/pipeline-bubble.sqlite",
    "sample_traces/sleeping-checkpoint.sqlite",
    "sample_traces/small-collectives.sqlite",
    "sample_traces/training.sqlite",
    "sample_traces/uneven-clock.sqlite",
    "streams_3.1.2.sqlite",
    "tests/gpu/recordings/empty_cache.pt.trace.json.gz",
    "tests/gpu/recordings/h200/metrics.pt.trace.json.gz",
    "tests/gpu/recordings/h200/offload.pt.trace.json.gz",
    "tests/gpu/recordings/models/gpt2_half.pt.trace.json.gz",
    "tests/gpu/recordings/models/save.pt.trace.json.gz",
    "tests/gpu/recordings/prefetch.pt.trace.json.gz",
    "tests/support/recordings/two_cpu_ranks-rank1.pt.trace.json.gz",
    "v100x4_mpi_peer_copies.sqlite",
    "vector_add_streams.sqlite",
)
"""Recordings that show all remedies together, but those of `MADE_FOR_TESTS`."""
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
    "Unset CUDA_LAUNCH_BLOCKING",
    "Pin memory once, before",
    "Find out why it compiles",
    "Let torch.compile take in",
    "cuBLAS: CUBLAS_COMPUTE_32F_FAST_TF32, or cublasSetMathMode(handle,",
    "Where the accuracy allows",
    "TensorFlow: tf.keras.mixed_precision.set_global_policy('mixed_bfloat16'); JAX: arrays",
)
"""The begins of remedies that no recording here shows.

The first waits for one whose all-gathers are long: in the recordings of FSDP here, copies from host
memory or a late rank take more. The last three are for programs of other libraries that multiply in
FP32. Launches that block, pinning and compiling in each step are common, and recorded by nobody.
The others were seen in public ones, on T4s: a clustering, and a solver whose first cudaMallocAsync
after each synchronization takes 1.07 ms; on an H100, a program that sleeps for one second beside a
kernel of 0.81; on an MI300X, Flux and Stable Diffusion 3.5.
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


def path_of(traces: Path, recording: str, folder: Path) -> Path:
    """Return a recording, or write the run of the simulator that it names to a folder."""
    kind, _, name = recording.partition("/")
    if kind == "runs":
        simulate_run(name, folder / name, seed=4)
        return folder / name
    here = Path(__file__).parents[2] / recording
    return here if here.exists() else traces / recording


@pytest.mark.long
def test_each_remedy_has_a_trace_that_shows_it(traces: Path, tmp_path: Path) -> None:
    shown = ""
    for recording in RECORDED:
        path = path_of(traces, recording, tmp_path)
        if recording.endswith(".sqlite.gz"):
            packed, path = path, tmp_path / "unpacked.sqlite"
            path.write_bytes(gzip.decompress(packed.read_bytes()))
        findings = closed_analysis(path).findings
        shown += "\n".join(plain(line) for one in findings for line in one.advice)
    # Of each the longest part that does not depend on a trace.
    hidden = [one for one in remedies() if max(re.split(NAMES, one), key=len).strip() not in shown]
    assert all(one.startswith(MADE_FOR_TESTS) for one in hidden), hidden
    assert len(hidden) == len(MADE_FOR_TESTS)


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
