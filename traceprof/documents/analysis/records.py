"""The document of an analysis, built from its results a table at a time, and read from a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from traceprof.analyses import collectives, exposed_copy, links, rank_work
from traceprof.analyses.collectives import CollectivesResult, ProcessGroupsResult
from traceprof.analyses.compute_parts import StepFlops, peak_of_kind
from traceprof.analyses.kernels.kernel_table import InSteadyStep, KernelUse
from traceprof.analyses.kernels.launched_kernels import Launcher
from traceprof.analyses.steps import WHY_LEFT_OUT, StepTotals, judged_steps, phases
from traceprof.analyses.verdict.attribution import Attribution
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.savings import Savings
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.documents.analysis import model
from traceprof.documents.analysis.model import SCHEMA, Document, Headline, maker
from traceprof.errors import TraceFileError
from traceprof.findings import Finding, NotApplicable
from traceprof.hardware import peak_memory_gb_per_s
from traceprof.host.units import NO_UNIT
from traceprof.run.step_ranges import StepsSource
from traceprof.version import __version__

if TYPE_CHECKING:
    from msgspec import Struct


_rank_row = maker(model.Rank, "num_workers")
_module_row = maker(model.Module, "rank", "per_steady_step_ns", "steady_error_ns")
_step_row = maker(model.Step, "rank", "step", "start_ns", "end_ns", "left_out", "phase")
_totals_row = maker(model.CommunicationTotals, "rank", "num_steps")
_link_row = maker(model.LinkUse, "rank", "peer_rank")
_clock_row = maker(model.Clock, "report", "run")
_timed_row = maker(model.TimedSteps)
_kernel_row = maker(model.Kernel, *model.OF_KERNEL, *model.OF_KERNEL_LAST)
_lateness_row = maker(model.Lateness, "rank", "host")


class ListField(NamedTuple):
    """A list of the document."""

    record: type[Struct]  # the type of its records: a field is a column
    records: Callable[[RunResult], Iterable[Struct]]  # makes them from a result


def _by_rank(
    record: type[Struct], rows: Callable[[RunResult], Iterable[tuple[int | None, object]]]
) -> ListField:
    made = maker(record, "rank")
    return ListField(record, lambda result: (made(row, rank) for rank, row in rows(result)))


def _reports(result: RunResult) -> Iterator[model.Report]:
    for index, report in enumerate(result.run.reports):
        environment = report.session.environment.items()
        variables = {name: value for name, value in environment if _VARIABLE.fullmatch(name)}
        yield model.Report(
            index=index,
            path=str(report.path),  # a byte that is not UTF-8 as Python has it, which JSON may hold
            format=report.format,
            product_version=report.product_version,
            schema_version=report.schema_version,
            command_line=[_encodable(word) for word in report.session.command_line],
            recorded=[part.name.lower().replace("_", " ") for part in report.recorded],
            environment={
                _encodable(name): _encodable(value)
                for name, value in {**report.session.versions, **variables}.items()
            },
            timed=[*map(_timed_row, report.timed)],
        )


def _ranks(result: RunResult) -> Iterator[model.Rank]:
    for rank in result.run.ranks:
        yield _rank_row(rank, result.run.reports[rank.report].num_workers.get(rank.process))


def _steps(result: RunResult) -> Iterator[model.Step]:
    for measured in result.breakdown:
        for step in measured.steps:
            start = step.measures.window_start_ns
            end = start + step.measures.window_ns
            left_out = "not judged" if step.use is None else WHY_LEFT_OUT.get(step.use)
            row = measured.rank, step.number, start, end, left_out, step.phase
            yield _step_row(step.measures, *row)


def _communication_totals(result: RunResult) -> Iterator[model.CommunicationTotals]:
    num_steps = {measured.rank: len(judged_steps(measured)) for measured in result.breakdown}
    on_gpus, groups = result.measured.results.of(collectives), result.measured.process_groups
    of_ranks: tuple[CollectivesResult | ProcessGroupsResult, ...] = (*on_gpus, *groups)
    for measured in of_ranks:
        rank, number = measured.rank, num_steps.get(measured.rank, 0)
        for use in measured.uses:
            yield _totals_row(use, rank, number)


def _kernels(result: RunResult) -> Iterator[model.Kernel]:
    launched = {of_rank.rank: of_rank for of_rank in result.measured.launched}
    gpus = {rank.rank: rank.gpu for rank in result.run.ranks}
    for table in result.measured.kernels:
        of_rank, gpu = launched.get(table.rank), gpus.get(table.rank)
        for use in table.uses:
            yield _kernel(table.rank, gpu, use, of_rank.of(use.name) if of_rank else Launcher())


def _modules(result: RunResult) -> Iterator[model.Module]:
    for of_rank in result.measured.launched:
        for use in of_rank.modules:
            yield _module_row(use, of_rank.rank, *_in_steady_step(use.in_steady_step))


def _headline(result: RunResult) -> Headline:
    headline = result.headline
    breakdown = None if headline is None else headline.breakdown
    lengths = None if headline is None else headline.lengths
    unit = NO_UNIT if breakdown is None else breakdown.unit
    return Headline(
        **asdict(Savings() if headline is None else headline.savings),
        step_ns=None if headline is None else headline.step_ns,
        median_step_ns=None if lengths is None else lengths.median_ns,
        step_kinds=[] if lengths is None else list(lengths.kinds),
        left_out=[] if lengths is None else list(lengths.left_out),
        steps_source=StepsSource.NONE if breakdown is None else breakdown.steps_source,
        findings=[] if headline is None else [finding.id for finding in headline.causes],
        periods=[] if breakdown is None else list(breakdown.periods),
        judged_fraction=None if headline is None else headline.judged_fraction,
        unit=unit.unit,
        layers=unit.layers,
        tokens_per_s=None if unit.served is None else unit.served.tokens_per_s,
        sequences=None if unit.served is None else unit.served.sequences,
        verdict=three_lines(result),
        phases=(list(phases(breakdown)) if breakdown is not None else []) or msgspec.UNSET,
    )


def _run(result: RunResult) -> model.Run:
    run, ranks, matrix_ns = result.run, result.ranks, result.ranks.matrix_ns
    work = rank_work.run(result.measured)
    return model.Run(
        rank_source=run.rank_source,
        num_runs=len(set(run.run_numbers)),
        ranks=[
            model.RunRank(rank.rank, ranks.clocks.of(rank.report).host, rank.gpu_id)
            for rank in run.ranks
        ],
        clocks=[
            _clock_row(ranks.clocks.of(report), report, number)
            for report, number in enumerate(run.run_numbers)
        ],
        matched=[
            model.Matched(
                communicator=waits.group.name,
                source=waits.group.source,
                ranks=[ranks.ranks[member] for member in waits.group.members],
                num_ranks=max(waits.group.num_ranks, len(waits.group.members)),
                num_operations=len(waits),
            )
            for waits in ranks.waits
        ],
        unmatched=list(ranks.unmatched),
        lateness=[
            _lateness_row(late, ranks.ranks[late.member], ranks.machines[late.member])
            for late in ranks.lateness
        ],
        waits=[
            model.Wait(
                rank=ranks.ranks[waiting],
                for_rank=ranks.ranks[late],
                wait_ns=int(matrix_ns[waiting, late]),
            )
            for waiting, late in zip(*matrix_ns.nonzero(), strict=True)
        ],
        peers=list(work.peers),
        work=list(work.ranks),
    )


def _links(result: RunResult) -> Iterator[model.LinkUse]:
    for of_rank in result.of(links):
        for use in of_rank.copies.uses:
            other = None
            if use.peer is not None:
                other = result.run.rank_beside(of_rank.rank, use.peer, use.peer_gpu_id)
            yield _link_row(use, of_rank.rank, other)
    for of_rank in result.of(links):
        for use in of_rank.counters.uses:
            yield _link_row(use, of_rank.rank, None)


def _kernel(rank: int, gpu: str | None, use: KernelUse, launcher: Launcher) -> model.Kernel:
    steady, gb_per_s = use.in_steady_step, launcher.gb_per_s(use.total_ns)
    return _kernel_row(
        use,
        rank,
        _encodable(use.name),
        str(use.kind.category),
        use.kind.precision,
        use.kind.tensor_cores,
        *_in_steady_step(steady),
        None if steady is None else round(steady.place, 4),
        launcher.operator,
        launcher.module,
        launcher.flops,
        launcher.source,
        launcher.flops_per_s(use.total_ns),
        peak_of_kind(gpu, use.kind),
        launcher.moved_bytes,
        gb_per_s,
        None if gb_per_s is None else peak_memory_gb_per_s(gpu),
        None if launcher.range is None else _encodable(launcher.range),
    )


def _in_steady_step(use: InSteadyStep | None) -> tuple[int | None, int | None]:
    """Return the mean time and its standard error in whole nanoseconds."""
    if use is None:
        return None, None
    return round(use.ns), None if use.error_ns is None else round(use.error_ns)


def _findings(result: RunResult) -> Iterator[Finding]:
    for finding in result.findings:
        evidence = tuple(replace(item, label=_encodable(item.label)) for item in finding.evidence)
        yield replace(finding, evidence=evidence)


def _encodable(text: str) -> str:
    """Return text that any JSON reader accepts, with what is no UTF-8 replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


_VARIABLE = re.compile(
    r"(NCCL|RCCL|TORCH\w*|PYTORCH|CUDA|CUDNN|CUBLAS|NVIDIA|OMP|MKL|GOMP|KMP|NVTE|HSA|HIP|MIOPEN)_\w+"
)
TABLES: Mapping[str, ListField] = {
    "reports": ListField(model.Report, _reports),
    "ranks": ListField(model.Rank, _ranks),
    "completeness": _by_rank(model.Completeness, attrgetter("completeness")),
    "breakdown": _by_rank(
        model.Breakdown, lambda result: ((one.rank, one.whole) for one in result.breakdown)
    ),
    "training": _by_rank(
        model.Training,
        lambda result: ((one.rank, one.training) for one in result.breakdown if one.training),
    ),
    "steps": ListField(model.Step, _steps),
    "step_totals": ListField(StepTotals, attrgetter("measured.step_totals")),
    "slow_steps": _by_rank(
        model.SlowStep,
        lambda result: (
            (one.rank, step) for one in result.measured.slow_steps for step in one.steps
        ),
    ),
    "communication_totals": ListField(model.CommunicationTotals, _communication_totals),
    "beside": _by_rank(
        model.Beside,
        lambda result: (
            (one.rank, row) for one in result.of(exposed_copy) for row in one.beside if row.total_ns
        ),
    ),
    "links": ListField(model.LinkUse, _links),
    "collectives": _by_rank(
        model.Collective,
        lambda result: ((one.rank, use) for one in result.collectives for use in one.uses),
    ),
    "buckets": _by_rank(
        model.Bucket,
        lambda result: ((one.rank, use) for one in result.measured.buckets for use in one.uses),
    ),
    "compute": _by_rank(
        model.Compute,
        lambda result: ((one.rank, part) for one in result.measured.compute for part in one.parts),
    ),
    "step_flops": ListField(
        StepFlops, lambda result: (one.in_step for one in result.measured.compute if one.in_step)
    ),
    "kernels": ListField(model.Kernel, _kernels),
    "modules": ListField(model.Module, _modules),
    "findings": ListField(Finding, _findings),
    "owners": ListField(Attribution, attrgetter("verdict.attributions")),
    "not_applicable": ListField(NotApplicable, attrgetter("not_applicable")),
    "notes": ListField(model.Note, lambda result: starmap(model.Note, result.notes)),
    "lost_reports": ListField(
        model.LostReport,
        lambda result: (
            model.LostReport(str(report.path), str(report.error)) for report in result.failed
        ),
    ),
}
"""The lists of the document by the names that they have in it."""


def document(result: RunResult) -> Document:
    """Return the analysis as the document that is written."""
    tables = {name: list(table.records(result)) for name, table in TABLES.items()}
    return Document(
        schema=SCHEMA,
        traceprof_version=__version__,
        run=_run(result),
        headline=_headline(result),
        **tables,  # type: ignore[arg-type]
    )


MAX_DOCUMENT_BYTES = 1 << 28
"""Of a document, which holds some 50 kB for each rank."""

_MAX_NUMBER = 1 << 62  # sums of some, and their squares as floats, can be computed


def read_document(text: bytes, name: str) -> Document:
    """Return the document of an analysis from JSON; errors call its source by the name.

    Raises TraceFileError: it is not JSON, another document, from another version, or damaged.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        why = f"it has more than {MAX_DOCUMENT_BYTES >> 20} MiB"
        raise TraceFileError(f"cannot read {name}", why, "analyse fewer reports at once")
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFileError(
            f"cannot read {name}", f"it is not JSON: {error}", "write the analysis again"
        ) from error
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema != SCHEMA:
        why = f"it is {schema!r}, not an analysis"
        raise TraceFileError(f"cannot compare {name}", why, "use analyze --format json")
    try:
        document = msgspec.convert(values, Document)
    except msgspec.ValidationError as error:
        why = f"another version of traceprof wrote it ({error})"
        raise TraceFileError(
            f"cannot compare {name}", why, "analyse the reports again with this version"
        ) from error
    fault = next(_faults(values, document), None)
    if fault is not None:
        why = f"it was changed: {fault}"
        raise TraceFileError(f"cannot compare {name}", why, "write the analysis again")
    return document


def _faults(values: object, document: Document) -> Iterator[str]:
    if _holds_large_number(values):
        yield "a number is too large"
    if not document.reports or not document.ranks:
        yield "it has no report or no rank"
    ranks = [rank.rank for rank in document.ranks]
    if len(set(ranks)) < len(ranks) or [rank.rank for rank in document.run.ranks] != ranks:
        yield "its ranks are not those of its run"
    if {totals.rank for totals in document.step_totals} - {*ranks}:
        yield "it has steps of other ranks"
    num_steps = Counter(step.rank for step in document.steps)
    for totals in document.step_totals:
        places = totals.steps
        if len(places) != totals.num_steps or max(places, default=-1) >= num_steps[totals.rank]:
            yield f"the steps of rank {totals.rank} are not those of its totals"


def _holds_large_number(values: object) -> bool:
    stack = [values]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, (int, float)) and not abs(value) <= _MAX_NUMBER:
            return True
    return False
