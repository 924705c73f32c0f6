"""What a recording proves to be done already, or to be no remedy: read from its rows by name.

Shares no code with ``traceprof``: for tests that hold advice against the recording.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.reference.kineto import document
from tests.reference.nsight_export import export_of


def _named(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern, re.IGNORECASE)


_MULTIPLIES = _named(r"gemm|xmma|cutlass|cublas|nvjet|Cijk_|matmul|conv|[wd]grad")
_CONVOLVES = _named(r"conv|[wd]grad|fprop|xmma_.*(?:nhwc|nchw)")
_CHANNELS_LAST = _named("nhwc")
_LAYOUT = _named(r"nchwToNhwc|nhwcToNchw")
_HALF = re.compile(
    r"bf16|fp16|f16f16|h16816|h884|h1688|hgemm|hmma|half|BFloat16|nv_?bfloat|_[HB][HB]S?_"
    r"|nvjet_[ht]s[ht]"
)
_ROUNDED = _named(r"tf32|s1688|s16816")
_FUSED = re.compile(r"Fused(?:Adam|Sgd|Adagrad)MathFunctor|\bAdamFunctor")
_ATTENTION = _named(r"flash|fmha|sdpa_sm|attention|attn_fwd")
_SOFTMAX = _named(r"softmax")
_SCALER = _named(r"amp_(?:foreach_)?non_finite|amp_update_scale")
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|MallocHost|FreeHost)|cuMem(?:Alloc|Free|HostAlloc)"
)
_REDUCES = _named("nccl|rccl|gloo|all_?reduce|reduce_?scatter")
_SERVES = re.compile(r"execute_(?:\d+_)?context_|\Astep\[[A-Z_]+ bs=")


class Rows(NamedTuple):
    kernels: "Counter[str]"  # ns, by name
    in_graphs: int  # number of kernels that graphs launched
    alone: int  # number of the other kernels
    to_host: int  # number of copies to the host
    updates: int  # number of kernels in which a GradScaler chooses its scale, once a step
    from_host: "Counter[int | None]"  # bytes copied from the host, by the kind of its memory
    calls: "Counter[str]"  # number of calls, without their version
    labels: "Counter[str]"  # number of ranges, operators and Python functions, by name
    # time of kinds of events by the step in which the host launched or made them; -1 for none
    in_step: "dict[str, Counter[int]]" = {}  # noqa: RUF012

    def ns(self, *patterns: "re.Pattern[str]", without: "re.Pattern[str] | None" = None) -> int:
        """Time of kernels whose names match all of these."""
        return sum(
            ns
            for name, ns in self.kernels.items()
            if all(pattern.search(name) for pattern in patterns)
            and not (without and without.search(name))
        )


def rows_of(path: Path) -> Rows:
    return _of_export(path) if path.suffix == ".sqlite" else _of_profile(path)


_STEP = re.compile(r"step \d+|ProfilerStep#\d+")


def _kind(name: str) -> str | None:
    """Kind of an event that nothing else makes: a copy's direction, and what a call waits for."""
    found = re.search(r"HtoD|DtoH|DtoD|Memset|(?<=Device)Synchronize|Malloc(?!Host|Async)", name)
    return found[0] if found else "layout" if _LAYOUT.search(name) else None


def _by_step(
    events: "Iterable[tuple[str, int, int]]", steps: "list[tuple[int, int]]"
) -> "dict[str, Counter[int]]":
    """Add the lengths of events (name, time on the host, length) by kind and step."""
    found = {"steps": Counter(range(len(steps)))}
    for name, at, length in events:
        kind = _kind(name)
        if kind is not None:
            place = next((n for n, (start, end) in enumerate(steps) if start <= at < end), -1)
            found.setdefault(kind, Counter())[place] += length
    return found


def _of_profile(path: Path) -> Rows:
    result = Rows(Counter(), 0, 0, 0, 0, Counter(), Counter(), Counter())
    launched, graphs, to_host, updates = Counter[int](), set[int](), 0, 0
    steps: list[tuple[int, int]] = []
    calls: dict[int, int] = {}
    events: list[tuple[str, int, int, int]] = []
    for event in document(path)["traceEvents"]:
        if event.get("ph") != "X":
            continue
        category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        args = event.get("args", {})
        at, length = int(1000 * event["ts"]), int(1000 * event["dur"])
        number = int(args.get("correlation", -1))
        if _STEP.fullmatch(name) and category == "user_annotation":
            steps.append((at, at + length))
        if category.startswith(("cuda_", "runtime")):
            calls[number] = at
        events.append((name, at, length, number if category in _ON_GPU else -1))
        if category == "kernel":
            result.kernels[name] += int(1000 * event["dur"])
            launched[args.get("correlation", -1)] += 1
            updates += "amp_update_scale" in name
        elif category in {"gpu_memcpy", "memcpy"}:
            to_host += "DtoH" in name
            if "HtoD" in name:
                kind = 0 if "Pageable" in name else 1 if "Pinned" in name else None
                result.from_host[kind] += int(args.get("bytes", args.get("Bytes", 1)))
        elif category in {"cuda_runtime", "cuda_driver", "runtime"}:
            result.calls[re.sub(r"_v\d+$", "", name)] += 1
            if "GraphLaunch" in name:
                graphs.add(args.get("correlation", -2))
        else:
            result.labels[name] += 1
    in_graphs = sum(number for call, number in launched.items() if call in graphs)
    alone = launched.total() - in_graphs
    launches = ((name, calls.get(of, at), length) for name, at, length, of in events)
    return result._replace(
        in_graphs=in_graphs,
        alone=alone,
        to_host=to_host,
        updates=updates,
        in_step=_by_step(launches, sorted(steps)),
    )


_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


def _of_export(path: Path) -> Rows:
    export = export_of(path)
    operations = [op for of_rank in export.ranks.values() for op in of_rank]
    result = Rows(Counter(), 0, 0, 0, 0, Counter(), Counter(), Counter())
    in_graphs = sum(
        node is not None for (node,) in export.rows("CUPTI_ACTIVITY_KIND_KERNEL", "graphNodeId")
    )
    to_host = updates = num_kernels = num_graphs = 0
    events: list[tuple[str, int, int]] = []
    for op in operations:
        name = {"MEMSET": "Memset", "KERNEL": op.demangled}.get(op.table, "")
        if op.table == "MEMCPY":
            name = {1: "HtoD", 2: "DtoH", 8: "DtoD"}.get(op.copy_kind or 0, "")
            to_host += name == "DtoH"
            if name == "HtoD":
                result.from_host[(op.memory or (None,))[0]] += op.bytes
        elif op.table == "KERNEL":
            result.kernels[name] += op.end - op.start
            num_kernels += 1
            updates += "amp_update_scale" in name
        num_graphs += op.table == "GRAPH_TRACE"
        events.append((name, op.call.start if op.call else op.start, op.end - op.start))
    for call in (call for of_process in export.calls.values() for call in of_process):
        result.calls[call.name] += 1
        events.append((call.name, call.start, call.end - call.start))
    ranges = [span for of_process in export.ranges.values() for span in of_process]
    result.labels.update(span.name for span in ranges)
    steps = [(span.start, span.end) for span in ranges if _STEP.fullmatch(span.name)]
    return result._replace(
        in_graphs=in_graphs + num_graphs,
        alone=num_kernels - in_graphs,
        to_host=to_host,
        updates=updates,
        in_step=_by_step(events, sorted(steps)),
    )


def contradictions(reports: "Iterable[Rows]", advice: "Iterable[str]") -> list[tuple[str, str]]:
    """Advice against which the rows of all reports speak, each after the reason."""
    every = [no_remedies(rows) for rows in reports]
    proven = {why: pattern for why, pattern in every[0].items() if all(why in one for one in every)}
    return [
        (why, line)
        for line in advice
        for why, pattern in proven.items()
        if pattern.search(line.replace("`", ""))
    ]


OF_WHAT_RECURS = {
    "HtoD": r"next batch|^Pin the host's side|from pageable host memory|from pinned host memory",
    "DtoH": r"to pageable host memory|to pinned host memory|^Read results late",
    "DtoD": r"\.contiguous\(\), \.clone\(\)",
    "Memset": r"zero_grad\(set_to_none",
    "Synchronize": r"torch\.cuda\.synchronize\(\) and|^Take synchronizing calls",
    "Malloc": r"Allocate before the loop|allocator ran out",
    "layout": r"^Changes of layout",
}
"""Remedies for what recurs, by the kind of event that they are about."""


def no_remedies(rows: Rows) -> "dict[str, re.Pattern[str]]":
    """Patterns of advice that these rows prove useless, each by its reason."""
    multiplies = rows.ns(_MULTIPLIES)
    half, rounded = rows.ns(_MULTIPLIES, _HALF), rows.ns(_MULTIPLIES, _ROUNDED, without=_HALF)
    found = {}
    if any("_MultiProcessingDataLoaderIter" in name for name in rows.labels):
        found["workers load"] = r"(?<!fewer )DataLoader\(num_workers"
    if set(rows.from_host) == {1}:
        found["all memory is pinned"] = r"pin_memory=True|pin it|pinned memory \(cudaMallocHost"
    if rounded > 0.5 * (multiplies - half):
        found["TF32 multiplies"] = r"set_float32_matmul_precision|TF32_TENSOR_OP"
    if any("MathFunctor" in name for name in rows.kernels if _FUSED.search(name)):
        found["PyTorch's optimizer is fused"] = r"fused=True"
    elif any(map(_FUSED.search, rows.kernels)):
        found["another optimizer is fused"] = r"The optimizer: torch\.optim"
    convolves = rows.ns(_CONVOLVES)
    if (
        rows.ns(_CONVOLVES, _CHANNELS_LAST) > 0.5 * convolves
        and rows.ns(_LAYOUT) < 0.01 * convolves
    ):
        found["channels last"] = r"channels_last"
    if half > 0.9 * multiplies or any(map(_SCALER.search, (*rows.kernels, *rows.labels))):
        found["autocast runs"] = r"under torch\.autocast|CUBLAS_COMPUTE_32F\b|mixed_bfloat16"
    if rows.in_graphs > rows.alone:
        found["graphs launch"] = r"CUDA graphs?\b(?! shorten)|make_graphed|reduce-overhead"
    if rows.ns(_ATTENTION) and not rows.ns(_SOFTMAX, without=_ATTENTION):
        found["attention is one kernel"] = r"scaled_dot_product_attention \("
    if sum(number for name, number in rows.calls.items() if _ALLOCATES.match(name)) < 2:
        found["nothing is allocated twice"] = r"allocator ran out|Allocate before the loop"
    if 0 < rows.to_host <= rows.updates:
        found["only the GradScaler reads"] = (
            r"Take \.item|Keep losses and metrics|Read results late"
        )
    if not any(map(_REDUCES.search, (*rows.kernels, *rows.labels))):
        found["nothing is reduced"] = r"\bDDP|DistributedDataParallel|bucket_cap_mb|no_sync"
    if any(name.startswith("triton_poi_fused") for name in rows.kernels):
        found["torch.compile runs"] = r"torch\.compile(\(model\)| fuses)"
    for kind, pattern in OF_WHAT_RECURS.items():
        per_step = rows.in_step.get(kind, Counter())
        if len(rows.in_step.get("steps", ())) >= 3 and any(
            step >= 0 and length > 0.95 * per_step.total() for step, length in per_step.items()
        ):
            found[f"{kind} in one step only"] = pattern
    if any(map(_SERVES.search, rows.labels)):
        found["it serves"] = r"\bDDP|gradient|[Oo]ptimizer|DataLoader|\bloss"
    return {why: re.compile(pattern) for why, pattern in found.items()}
