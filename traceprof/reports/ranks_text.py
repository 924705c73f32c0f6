"""Ranks and kernels as tables: clocks, waits, operations, process groups, buckets, compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traceprof.analyses import rank_work
from traceprof.analyses.compute_parts import (
    ComputePart,
    ComputeParts,
    SignatureUse,
    StepFlops,
    peak_of_kind,
)
from traceprof.analyses.kernels.kernel_table import KernelUse
from traceprof.analyses.kernels.launched_kernels import SEPARATOR, Launcher
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.errors import one_line
from traceprof.findings import share
from traceprof.hardware import peak_memory_gb_per_s
from traceprof.kernel_names import kernel_title
from traceprof.kernel_names.categories import MAIN_COMPUTE, Category, KernelKind, kernel_kind
from traceprof.reports.blocks import (
    MAX_NAME,
    MAX_RANKS,
    Block,
    Section,
    TableBlock,
    others,
    paragraph,
    section,
    table,
)
from traceprof.reports.time_text import shown_ranks
from traceprof.run.session_clocks import MachineClock
from traceprof.structs import Record, by_key
from traceprof.trace.grouping import median_of
from traceprof.units import (
    counted,
    duration,
    percent,
    ranks_text,
    signed_duration,
    size_text,
    three_digits,
    times,
)

_HEADINGS = ("came\nlast", "by", "waited", "most of\nit for", "made\nwait")
_WORK_HEADINGS = (
    "rank",
    "stage",
    "compute",
    "a\nforward",
    "a\nbackward",
    "beyond\nits peers",
    "noise",
)
_TRANSFER_HEADINGS = (
    "operation",
    "communicator",
    "between",
    "count",
    "waited",
    "transfer",
    "bus\nbandwidth",
    "of peak",
    "latency",
    "rate\nbeyond it",
)
_SCOPES = {"intra-node": "ranks of a node", "inter-node": "nodes"}
_SOURCES = {
    "labels": "the labels of instrument",
    "torch": "what torch.distributed gave the profiler",
    "nccl": "NCCL's payloads",
    "mpi": "MPI",
    "environment": "the environment of the processes",
    "file name": "the names of the files",
    "order": "their order: the reports do not contain them",
}


def rank_sections(analysis: RunResult) -> Iterator[Section]:
    """Yield sections on ranks against each other, and on process groups and DDP's buckets."""
    is_one_report = len(analysis.run.reports) == 1
    compared = analysis.ranks
    # Ranks of one report that share no operation are not compared.
    shares_work = not is_one_report or bool(compared.waits or compared.unmatched)
    if len(compared.ranks) > 1 and shares_work:
        heading = "Who waited for whom" if is_one_report else "Ranks on one clock"
        yield section(heading, *_ranks_on_one_clock(analysis))
        # Of one report the JSON has it: who waited says more in less room.
        transferred = None if is_one_report else _transfer_table(analysis)
        if transferred is not None:
            yield section(_arrived_heading(analysis), transferred)
    work = _work_table(analysis)
    if work is not None:
        yield section("Compute of each rank in a step, against its peers", work)
    yield from _groups(analysis)
    yield from _buckets(analysis)


def _work_table(analysis: RunResult) -> TableBlock | None:
    rows = {row.rank: row for row in rank_work.run(analysis.measured).ranks}
    if all(row.excess_ns is None for row in rows.values()):
        return None
    lines = [
        (
            str(row.rank),
            "-" if row.stage is None else str(row.stage),
            duration(row.compute_ns),
            *("-" if ns is None else duration(ns) for ns in (row.forward_ns, row.backward_ns)),
            "-" if row.excess_ns is None else signed_duration(row.excess_ns),
            "-" if row.noise_ns is None else duration(row.noise_ns),
        )
        for row in (rows[rank] for rank in shown_ranks(analysis, rows))
    ]
    return table(_WORK_HEADINGS, lines)


def _ranks_on_one_clock(analysis: RunResult) -> Iterator[Block]:
    """Yield a line for each rank, those that made others wait longest, and what is unmatched."""
    comparison, matrix_ns = analysis.ranks, analysis.ranks.matrix_ns
    # Ranks of one report share a clock and a machine.
    is_one_report = len(analysis.run.reports) == 1
    of_machine = () if is_one_report else ("host", "clock", "±")
    rows: list[tuple[str, ...]] = []
    late = {lateness.member: lateness for lateness in comparison.lateness}
    reports = {rank.rank: rank.report for rank in analysis.run.ranks}
    place = {rank: member for member, rank in enumerate(comparison.ranks)}
    shown = shown_ranks(analysis, place)
    for member in (place[rank] for rank in shown):
        clock, late_rank = comparison.clocks.of(reports[comparison.ranks[member]]), late.get(member)
        waited = matrix_ns[member]
        is_matched = any(member in waits.group.members for waits in comparison.waits)
        is_unknown = comparison.are_waits_unknown(member)
        host = one_line(comparison.machines[member], MAX_NAME)
        machine = () if is_one_report else (host, *_clock(clock))
        rows.append(
            (
                str(comparison.ranks[member]),
                *machine,
                "-" if late_rank is None else percent(late_rank.share_last),
                "-" if late_rank is None or not late_rank.num_last else duration(late_rank.late_ns),
                _known(int(waited.sum()), is_unknown=is_unknown) if is_matched else "-",
                f"rank {comparison.ranks[int(waited.argmax())]}" if waited.any() else "-",
                _known(int(matrix_ns[:, member].sum()), is_unknown=is_unknown)
                if is_matched
                else "-",
            )
        )
    yield table(("rank", *of_machine, *_HEADINGS), rows, text=("host",))
    if (left_out := others(len(place) - len(shown), "rank")) is not None:
        yield paragraph(left_out)
    if not is_one_report:
        yield paragraph(f"The rank numbers come from {_SOURCES[analysis.run.rank_source]}.")
    if any(clock.source == "session start" for clock in comparison.clocks.hosts):
        yield paragraph(
            "Clocks marked UTC share no operation with the others: they are as exact as NTP."
        )
    for waits in comparison.waits:
        captured, there = len(waits.group.members), waits.group.num_ranks
        if captured < there:
            name = one_line(waits.group.name or "a communicator")
            yield paragraph(
                f"Of the {there} ranks of {name}, {captured} were captured: another one may have"
                " been later still."
            )
    for group in comparison.unmatched:
        ranks = ", ".join(str(rank) for rank in sorted(group.ranks)[:MAX_RANKS])
        name = one_line(group.name) if group.name else "of no known communicator"
        yield paragraph(f"Operations {name} of the ranks {ranks} were not matched: {group.reason}.")


def _transfer_table(analysis: RunResult) -> TableBlock | None:
    """Return what operations took once all ranks were there; None if none was matched.

    One line for each operation and communicator, the one with the longest transfers first. The
    transfer is the same on all ranks; of their waits, the median is shown.
    """
    matched = (use for result in analysis.collectives for use in result.uses if use.num_matched)
    by_group = by_key(matched, lambda use: (use.operation, use.communicator or ""))
    if not by_group:
        return None
    rows: list[tuple[str, ...]] = []
    by_cost = sorted(by_group.items(), key=lambda item: (-(item[1][0].transfer_ns or 0), item[0]))
    for (operation, communicator), uses in by_cost[:MAX_RANKS]:
        use = uses[0]
        is_exact = not use.is_lower_bound
        waits = [one.wait_ns for one in uses if one.wait_ns is not None]
        rows.append(
            (
                one_line(operation, MAX_NAME),
                _short(communicator, use.description),
                "-" if use.scope is None else _SCOPES[use.scope],
                str(use.num_matched),
                duration(int(median_of(waits))) if waits else "unknown",
                "-" if use.transfer_ns is None else duration(use.transfer_ns),
                _rate(use.busbw_gb_per_s if is_exact else None),
                "-" if use.utilization is None or not is_exact else percent(use.utilization),
                "-" if use.latency_ns is None else duration(use.latency_ns),
                _rate(use.rate_gb_per_s),
            )
        )
    return table(_TRANSFER_HEADINGS, rows, text=("communicator",))


def _arrived_heading(analysis: RunResult) -> str:
    sizes = [
        (len(waits.group.members), max(waits.group.num_ranks, len(waits.group.members)))
        for waits in analysis.ranks.waits
    ]
    captured, there = max(sizes, key=lambda size: (size[1] - size[0], size[1]), default=(0, 0))
    if captured == there:
        return "Communication, after all ranks have arrived"
    return f"Communication, after the captured ranks have arrived: {captured} of {there}"


def _known(nanoseconds: int, *, is_unknown: bool) -> str:
    """Write a wait. No wait is unknown where clocks are too coarse to see one."""
    return "unknown" if is_unknown and nanoseconds == 0 else duration(nanoseconds)


def _short(communicator: str, description: str | None) -> str:
    """Shorten NCCL's ids to their end, which distinguishes them; names stay whole."""
    is_id = communicator.startswith("0x")
    described = "" if description is None else f" ({description})"
    return one_line((f"…{communicator[-8:]}" if is_id else communicator) + described, MAX_NAME)


def _rate(gb_per_s: float | None) -> str:
    return "-" if gb_per_s is None else f"{three_digits(gb_per_s)} GB/s"


def _clock(clock: MachineClock) -> tuple[str, str]:
    known = "" if clock.uncertainty_ns is None else duration(clock.uncertainty_ns)
    if clock.source == "operations":
        return signed_duration(clock.offset_ns), known
    if clock.source == "reference":
        return "reference", ""
    return "UTC" if clock.source == "session start" else "unknown", known


_GROUP_HEADINGS = (
    "group",
    "operation",
    "ranks",
    "operations\nper rank",
    "bytes\nper rank",
    "median\noperation",
    "mean\noperation",
)
_MAX_ROWS = 24  # more than that nobody reads; the JSON has them all


def _groups(analysis: RunResult) -> Iterator[Section]:
    groups = analysis.measured.shown_process_groups
    uses_by_key = by_key(
        ((result.rank, use) for result in groups for use in result.uses),
        lambda item: (item[1].communicator or "", item[1].operation, item[1].peer),
    )
    ordered = sorted(uses_by_key.items(), key=lambda row: -sum(use.total_ns for _, use in row[1]))
    rows = []
    for (_, operation, peer), of_ranks in ordered[:_MAX_ROWS]:
        beside = "" if peer is None else f" {'to' if operation == 'Send' else 'from'} {peer}"
        uses = [use for _, use in of_ranks]
        sizes = [use.bytes for use in uses if use.bytes is not None]
        mean_ns = sum(use.total_ns for use in uses) // sum(use.count for use in uses)
        rows.append(
            (
                one_line((uses[0].communicator_text or "-").removeprefix("group "), MAX_NAME),
                one_line(f"{operation}{beside}", MAX_NAME),
                _numbers(of_ranks),
                _span([use.count for use in uses]),
                size_text(max(sizes)) if len(sizes) == len(uses) else "-",
                duration(int(median_of([use.median_ns for use in uses]))),
                duration(mean_ns),
            )
        )
    if rows:
        shown = table(_GROUP_HEADINGS, rows, text=("group", "operation"))
        yield section(
            "Communication by process group", shown, others(len(ordered) - _MAX_ROWS, "row")
        )


def _buckets(analysis: RunResult) -> Iterator[Section]:
    uses_by_key = by_key(
        ((result.rank, use) for result in analysis.measured.buckets for use in result.uses),
        lambda item: (-1 if item[1].index is None else item[1].index, item[1].bytes or 0),
    )
    rows = []
    for (index, size), of_ranks in sorted(uses_by_key.items())[:_MAX_ROWS]:
        uses = [use for _, use in of_ranks]
        done = [
            use.median_ready_to_done_ns for use in uses if use.median_ready_to_done_ns is not None
        ]
        rows.append(
            (
                str(index) if index >= 0 else "-",
                size_text(size) if size else "-",
                _numbers(of_ranks),
                _span([use.count for use in uses]),
                duration(int(median_of(done))) if done else "-",
            )
        )
    headings = ("bucket", "bytes", "ranks", "times\nper rank", "ready to\nreduced")
    if rows:
        yield section(
            "Gradient buckets", table(headings, rows), others(len(uses_by_key) - _MAX_ROWS, "row")
        )


def _numbers(of_ranks: Iterable[tuple[int, object]]) -> str:
    return ranks_text([rank for rank, _ in of_ranks]).partition(" ")[2]


def _span(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least}-{most}"


_MIN_SHARE = 0.5  # of what is judged: less compute is not what a step takes
_MIN_SPOKEN = 0.01  # of the compute: less is not worth a word
_MAX_NAME = 70  # characters of a kernel's name: it stands in one line
_MATRICES = frozenset(str(category) for category in MAIN_COMPUTE)


def compute_lines(analysis: RunResult) -> list[str]:
    """Describe the compute of the rank that computes longest, in at most six lines.

    There are none if no rank computes for half of the judged time.
    """
    busy = {
        result.rank: result
        for result in analysis.breakdown
        if result.judged.compute_ns >= _MIN_SHARE * result.judged.window_ns
    }
    ranks = [parts for parts in analysis.measured.compute if parts.rank in busy and parts.total_ns]
    if not ranks:
        return []
    longest = max(ranks, key=lambda parts: (parts.total_ns, -parts.rank))
    measured = busy[longest.rank]
    of_rank = f"rank {longest.rank}, " if len(analysis.breakdown) > 1 else ""
    is_all = measured.whole.compute_ns == measured.judged.compute_ns
    recorded = "" if is_all else " in all that was recorded"
    categories = [
        f"{category} {percent(share(total, longest.total_ns))}{_formats(category, rows, longest)}"
        for category, rows in by_category(longest)
        if (total := _total(rows)) >= _MIN_SPOKEN * longest.total_ns
    ]
    return [
        f"{of_rank}{duration(longest.total_ns)}{recorded}: {', '.join(categories)}",
        *_tensor_cores(longest),
        *([step_text(longest.in_step)] if longest.in_step is not None else []),
        *(_signature(use, longest.total_ns) for use in longest.largest),
    ]


def by_category(parts: ComputeParts) -> list[tuple[str, list[ComputePart]]]:
    """Return the parts of each category, both the longest first."""
    by_name = by_key(parts.parts, lambda part: part.category)
    return sorted(by_name.items(), key=lambda item: -_total(item[1]))


def _formats(category: str, rows: Sequence[ComputePart], parts: ComputeParts) -> str:
    if category == Category.OTHER:
        for use in parts.largest:
            if kernel_kind(use.name).category == category:
                part = percent(share(use.total_ns, parts.total_ns))
                return f" ({one_line(kernel_title(use.name), _MAX_NAME)} {part})"
    if category not in _MATRICES:
        return ""
    spent: dict[str, int] = {}
    for row in rows:
        name = row.precision or "format not known"
        spent[name] = spent.get(name, 0) + row.total_ns
    if len(spent) == 1:
        return f" ({next(iter(spent))})"
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    shares = [
        f"{name} {percent(share(total, parts.total_ns))}"
        for name, total in ordered
        if total >= _MIN_SPOKEN * parts.total_ns
    ]
    return f" ({', '.join(shares)})" if shares else ""


def _tensor_cores(parts: ComputeParts) -> list[str]:
    matrices = [part for part in parts.parts if part.category in _MATRICES]
    total = _total(matrices)
    if total < _MIN_SPOKEN * parts.total_ns:
        return []
    on = _total([part for part in matrices if part.tensor_cores])
    unknown = _total([part for part in matrices if part.tensor_cores is None])
    known, of = "runs on tensor cores", "of matrix multiplication"
    if unknown < _MIN_SPOKEN * total:
        words = f"{percent(share(on, total))} {of} {known}"
    elif total - unknown < _MIN_SPOKEN * total:
        words = f"kernel names do not show whether matrix multiplication {known}"
    else:
        part = on or total - unknown
        known = known if on else "does not run on tensor cores"
        words = f"at least {percent(share(part, total))} {of} {known}:"
        words += f" kernel names do not show it for {percent(share(unknown, total))}"
    return [words + _matrix_rate(matrices)]


def _matrix_rate(matrices: Sequence[ComputePart]) -> str:
    longest = max(matrices, key=lambda part: part.total_ns)
    rate, peak = longest.flops_per_s, longest.peak_flops_per_s
    if rate is None:
        return ""
    of_peak = "" if peak is None else f" of {three_digits(peak / 1e12)} ({percent(rate / peak)})"
    return f"; {longest.category} reaches {three_digits(rate / 1e12)}{of_peak} TFLOP/s"


def step_text(of_step: StepFlops) -> str:
    """Say what share of the GPU's peak a step reaches."""
    at_least = "at least " if of_step.coverage < 1 else ""
    rate, peak = of_step.flops_per_s, of_step.peak_flops_per_s
    of_peak = "" if peak is None else f" of {three_digits(peak / 1e12)} ({of_step.precision})"
    why = "by the shapes of operators"
    if of_step.source == "given":
        why = "by --flops-per-step"
    elif at_least:
        why += f", known of {percent(of_step.coverage)} of matrix multiplication"
    mfu = "" if of_step.mfu is None else f", an MFU of {at_least}{percent(of_step.mfu)}"
    reached = f"a step reaches {at_least}{three_digits(rate / 1e12)}{of_peak} TFLOP/s{mfu}"
    return f"{reached}: {of_step.flops:.3g} FLOPs in {duration(of_step.step_ns)}, {why}"


def _signature(use: SignatureUse, total_ns: int) -> str:
    grid = "" if use.grid is None else f", grid {' x '.join(map(str, use.grid))}"
    name = one_line(kernel_title(use.name), _MAX_NAME)
    return f"{percent(share(use.total_ns, total_ns))} {name}{grid}, {times(use.num_kernels)}"


def _total(parts: Sequence[ComputePart | KernelUse]) -> int:
    return sum(part.total_ns for part in parts)


MAX_KERNELS = 20  # of one rank; the JSON has them all
_BY_NAME = "Kernels, by name"


def kernel_section(analysis: RunResult) -> Section:
    """Return the kernels of the rank whose kernels take longest together, and what is left out."""
    tables = [(_total(kernels.uses), kernels) for kernels in analysis.measured.kernels]
    if not any(total for total, _ in tables):
        return section(_BY_NAME, "No kernel ran.")
    total, kernels = max(tables, key=lambda item: (item[0], -item[1].rank))
    uses = kernels.uses
    shown, rest = uses[:MAX_KERNELS], uses[MAX_KERNELS:]
    spent = _total(rest)
    names, fraction = counted(len(rest), "more name"), percent(share(spent, total))
    return section(
        _BY_NAME,
        f"rank {kernels.rank}, whose kernels take longest together ({duration(total)});"
        " --format json has those of all ranks"
        if len(tables) > 1
        else None,
        _kernel_categories(uses, total),
        _table(shown, total, _reaching(analysis, kernels.rank, shown)),
        f"… and {names}: {duration(spent)}, {fraction}" if rest else None,
    )


def _reaching(analysis: RunResult, rank: int, uses: Sequence[KernelUse]) -> list[str]:
    """Say what each kernel reaches of the GPU's peak; nothing if that is known of none."""
    launched = next(
        (kernels for kernels in analysis.measured.launched if kernels.rank == rank), None
    )
    gpu = next((member.gpu for member in analysis.run.ranks if member.rank == rank), None)
    if launched is None:
        return []
    texts = []
    for use in uses:
        reach = reached(launched.of(use.name), use, gpu)
        of_peak = "" if reach is None or reach.share is None else f", {percent(reach.share)}"
        texts.append("" if reach is None else f"{three_digits(reach.rate)} {reach.unit}{of_peak}")
    return texts if any(texts) else []


class Reached(Record, frozen=True):
    """What kernels of a name reach of the GPU's peak, by the shapes of operators."""

    rate: float  # in the unit
    unit: str  # `TFLOP/s` of multiplications of matrices, else `GB/s`
    share: float | None  # of the peak; None if that is unknown


def reached(launcher: Launcher, use: KernelUse, gpu: str | None) -> Reached | None:
    """Return what kernels reach of the GPU's peak; None if shapes do not say it."""
    flops, moved = launcher.flops_per_s(use.total_ns), launcher.gb_per_s(use.total_ns)
    if flops is not None:
        peak = peak_of_kind(gpu, use.kind)
        return Reached(flops / 1e12, "TFLOP/s", None if peak is None else flops / peak)
    if moved is None:
        return None
    peak = peak_memory_gb_per_s(gpu)
    return Reached(moved, "GB/s", None if peak is None else moved / peak)


def _table(uses: Sequence[KernelUse], total_ns: int, reaching: Sequence[str]) -> TableBlock:
    has_steps = any(use.per_step_ns is not None for use in uses)
    per_step, reach = ("per step",) * has_steps, ("reaches",) * bool(reaching)
    rows = [
        (
            duration(use.total_ns),
            percent(share(use.total_ns, total_ns)),
            *(() if use.per_step_ns is None else (duration(use.per_step_ns),)),
            str(use.count),
            duration(use.median_ns),
            *reaching[place : place + 1],
            str(use.kind.category),
            arithmetic_text(use.kind),
            one_line(kernel_title(use.name), MAX_NAME),
        )
        for place, use in enumerate(uses)
    ]
    numbers = ("time", "share", *per_step, "count", "median", *reach)
    headings = (*numbers, "category", "computes in", "kernel")
    return table(headings, rows, text=("kernel",), cut=("category", "computes in"))


def arithmetic_text(kind: KernelKind) -> str:
    """Return number format and tensor cores, if the kernel's name has them."""
    unit = ", tensor cores" if kind.tensor_cores else ""
    if kind.precision is None:
        return unit[2:] or "-"
    return f"{kind.precision}{unit}"


def _kernel_categories(uses: Sequence[KernelUse], total_ns: int) -> str:
    spent: dict[str, int] = {}
    for use in uses:
        name = str(use.kind.category) if use.kind.is_known else "not known by name"
        spent[name] = spent.get(name, 0) + use.total_ns
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {percent(share(time, total_ns))}" for name, time in ordered)


MAX_MODULES = 30  # of one rank; the JSON has them all
_MIN_MODULE = 0.01  # of the kernels: less is not worth a line


def module_section(analysis: RunResult) -> Section | None:
    """Return the modules of the rank whose modules take longest; None if none is known."""
    ranks = [(launched.in_modules_ns, launched) for launched in analysis.measured.launched]
    total, chosen = max(ranks, key=lambda item: (item[0], -item[1].rank), default=(0, None))
    if chosen is None or not total:
        return None
    shown = [use for use in chosen.modules if use.total_ns >= _MIN_MODULE * total][:MAX_MODULES]
    rows = []
    for use in shown:
        *around, name = use.module.split(SEPARATOR)
        rows.append(
            (
                duration(use.total_ns),
                percent(share(use.total_ns, total)),
                duration(use.own_ns),
                duration(use.backward_ns),
                str(use.num_kernels),
                one_line(f"{'  ' * len(around)}{name}", MAX_NAME),
            )
        )
    headings = ("time", "share", "own", "backward", "kernels", "module")
    return section(
        "Kernels, by module",
        f"rank {chosen.rank}, whose modules take longest together ({duration(total)})"
        if len(analysis.measured.launched) > 1
        else None,
        table(headings, rows, text=("module",)),
        others(len(chosen.modules) - len(shown), "module"),
    )
