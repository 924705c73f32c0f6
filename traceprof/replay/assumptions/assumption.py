"""Assumptions as they are written on the command line, and the variants of a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses import breakdown
from traceprof.communication.messages import EXCHANGE, EXCHANGES
from traceprof.errors import UsageError, closest
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.replay.assumptions.one_process import (
    without_data_loading,
    without_launch_time,
    without_silences,
)
from traceprof.replay.assumptions.run_change import RunChange
from traceprof.replay.assumptions.table import ASSUMPTIONS, Entry, name_of
from traceprof.replay.graph.process_graph import Process
from traceprof.replay.graph.run_graph import RunGraph, synchronizing_groups
from traceprof.replay.graph.weights import AS_RECORDED, Durations, Reading, Variant
from traceprof.replay.results import Refusal
from traceprof.structs import Record
from traceprof.trace.model.parts import Part
from traceprof.trace.model.trace import KINETO_FORMAT

Change = Callable[[Process, Durations], Durations]

PROFILERS_SHARE = 0.3
"""The largest share of the time for launching that torch.profiler is assumed to have added.

It made 19 of 24 steps of an H100 that waited for its host longer by at most this share of the
recorded time, and five by more (docs/testing.md).
"""
_MAX_UNMATCHED = 0.01  # of the training, that such kernels may take


class Atom(Record, frozen=True):
    """An entry of the table with a value."""

    text: str  # as it was written: `link=4x`
    entry: Entry  # of the table
    value: tuple[Any, ...] = ()  # arguments for the entry's functions
    of_run: tuple[Any, ...] = ()  # more arguments for its `change`


class Assumption(Record, frozen=True):
    """One assumption, or several at the same time."""

    atoms: tuple[Atom, ...]  # the assumptions that it consists of

    @property
    def text(self) -> str:
        """The assumption as it was written: `no-sync + link=2x`."""
        return " + ".join(atom.text for atom in self.atoms)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of the table that it consists of."""
        return tuple(atom.entry for atom in self.atoms)

    @property
    def is_bound(self) -> bool:
        """Whether the answer is a limit that no change of a program can reach."""
        return any(entry.is_bound for entry in self.entries)

    @property
    def limits_gpu(self) -> bool:
        """Whether the answer is a limit of GPU time, which only a quicker host would reach."""
        return self.is_bound and "gpu" in self.changed

    @property
    def changed(self) -> frozenset[str]:
        """The kinds of things that change: see `Entry.changed`."""
        return frozenset().union(*(entry.changed for entry in self.entries))

    def condition(self, analysis: OpenAnalysis) -> str:
        """Return under which conditions the answer holds."""
        texts = [
            condition if isinstance(condition, str) else condition(analysis)
            for condition in (entry.condition for entry in self.entries)
        ]
        return "; ".join(filter(None, dict.fromkeys(texts)))

    @property
    def keeps_loading(self) -> bool:
        """Whether data are loaded as before."""
        return all(entry.change is not without_data_loading for entry in self.entries)

    @property
    def changes_run(self) -> bool:
        """Whether edges between ranks change."""
        return any(entry.run_change is not None for entry in self.entries)

    @property
    def others(self) -> tuple[Assumption, ...]:
        """The same assumption with other readings of the run's unknowns."""
        return tuple(
            Assumption(
                tuple(
                    replace(atom, entry=replace(atom.entry, change=atom.entry.others[index]))
                    if atom.entry.others
                    else atom
                    for atom in self.atoms
                )
            )
            for index in range(max(len(entry.others) for entry in self.entries))
        )

    def prepared(self, analysis: OpenAnalysis) -> Assumption:
        """Return the assumption with the facts about all ranks that its changes need."""
        return Assumption(
            tuple(
                replace(atom, of_run=atom.entry.of_run(analysis)) if atom.entry.of_run else atom
                for atom in self.atoms
            )
        )

    def change(self, process: Process, durations: Durations) -> Durations:
        """Return the durations of a process's actions under the assumption.

        Where other threads bring batches, these are always there: the answer is a limit.
        """
        if len(process.loading_threads) and self.keeps_loading:
            durations = without_data_loading(process, durations)
        for atom in sorted(self.atoms, key=lambda atom: atom.entry.comes_last):
            if atom.entry.change is not None:
                durations = atom.entry.change(process, durations, *atom.value, *atom.of_run)
        return without_silences(process, durations) if len(process.loading_threads) else durations

    def run_changes(self, analysis: OpenAnalysis, graph: RunGraph) -> list[RunChange] | Refusal:
        """Return the changes between ranks, or why there are none."""
        by_text = {atom.text: atom for atom in self.atoms if atom.entry.run_change is not None}
        names = [atom.entry.name for atom in by_text.values()]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            return Refusal(f"{twice} cannot have two values")
        changes = []
        for atom in by_text.values():
            assert atom.entry.run_change is not None  # noqa: S101
            change = atom.entry.run_change(analysis, graph, *atom.value)
            if isinstance(change, Refusal):
                return change
            changes.append(change)
        return changes

    def refusal(self, analysis: OpenAnalysis) -> Refusal | None:
        """Return why the assumption cannot be made about a run; None if it can."""
        if any(entry.needs_waits for entry in self.entries):
            unknown = _unmatched_sends(analysis)
            if unknown is not None:
                return unknown
        reasons = (
            atom.entry.refusal(analysis, *atom.value)
            for atom in self.atoms
            if atom.entry.refusal is not None
        )
        return next((reason for reason in reasons if reason is not None), None)

    def doubt(self, analysis: OpenAnalysis) -> str | None:
        """Return why the assumption may gain nothing; None if it surely gains."""
        doubt = self.atoms[0].entry.doubt
        return None if doubt is None or len(self.atoms) > 1 else doubt(analysis)


def parse(text: str) -> Assumption:
    """Read an assumption, `NAME` or `NAME=VALUE`, several joined by `+`; or a `UsageError`."""
    return Assumption(tuple(_atom(part.strip()) for part in text.split("+")))


def combined(assumptions: Iterable[Assumption]) -> Assumption:
    """Return one assumption that makes several at the same time."""
    return Assumption(tuple(atom for assumption in assumptions for atom in assumption.atoms))


def defaults() -> list[Assumption]:
    """Return the assumptions that are answered when none is chosen."""
    return [parse(entry.form) for entry in ASSUMPTIONS if entry.is_default]


class Way(IntEnum):
    """Ways to resolve the unknowns of a run, by their columns.

    Most change nothing: then they are not replayed again.
    """

    PLAIN = 0
    HIDDEN_WAITS = 1  # silences of threads that may be waits for the GPU are waits
    FREED_WAITS = 2  # and assumptions without host waits remove these as well, and the calls
    WITHOUT_DELAYS = 3  # delays of unknown reason are removed
    WHOLE_STREAMS = 4  # waits for communication are for all before it on its stream
    FEWEST_WAITS = 5  # without event records, streams wait for nothing but what was seen
    UNRECORDED = 6  # the host takes less: without what torch.profiler may have taken
    UNRECORDED_WAITS = 7  # `UNRECORDED` and `FREED_WAITS` together
    QUICK_HOST = 8  # launching, which recorders slow, takes no time: of `limits_gpu` alone


def variants_of(assumption: Assumption | None, of_profiler: float) -> list[Variant]:
    """Return the ways to weigh a run, with its unknowns resolved each way; see `Way`."""
    # A wait that is hidden is one of those that go, where nothing else changes.
    stays = assumption is None or "waits" not in assumption.changed or len(assumption.changed) > 2
    quick = float(assumption is None or assumption.limits_gpu)
    changes = {share: _with_quick_host(assumption, share) for share in (0.0, of_profiler, quick)}
    readings = (
        (0.0, AS_RECORDED),
        (0.0, Reading(has_hidden_waits=stays)),
        (0.0, Reading(has_hidden_waits=True, frees_hidden_waits=True)),
        (0.0, Reading(keeps_unexplained=False)),
        (0.0, Reading(has_whole_streams=True)),
        (0.0, Reading(has_possible_waits=False)),
        (of_profiler, AS_RECORDED),
        (of_profiler, Reading(has_hidden_waits=True, frees_hidden_waits=True)),
        (quick, AS_RECORDED),
    )
    return [Variant(changes[share], reading) for share, reading in readings]


def _with_quick_host(assumption: Assumption | None, share: float) -> Change | None:
    """Return the change of an assumption where launching takes less by a share."""
    if not share:
        return None if assumption is None else assumption.change

    def change(process: Process, measured: Durations) -> Durations:
        durations = without_launch_time(process, measured, share)
        return durations if assumption is None else assumption.change(process, durations)

    return change


def ways_of(assumption: Assumption) -> list[Way]:
    """Return the ways in which a run is replayed with and without an assumption."""
    return [way for way in Way if way is not Way.QUICK_HOST or assumption.limits_gpu]


def profilers_share(analysis: OpenAnalysis) -> float:
    """Return the share of launch time that the recorder may cause."""
    is_of_profiler = any(rank.trace.format == KINETO_FORMAT for rank in analysis.run.ranks)
    return PROFILERS_SHARE if is_of_profiler else 0.0


def _atom(text: str) -> Atom:
    name = name_of(text)
    entries = [entry for entry in ASSUMPTIONS if entry.name == name]
    if not entries:
        forms = ", ".join(entry.form for entry in ASSUMPTIONS)
        meant = closest(name, [entry.name for entry in ASSUMPTIONS])
        raise UsageError(
            f"there is no assumption {text!r}",
            f"this version knows {forms}",
            "choose among them" if meant is None else f"did you mean {meant!r}?",
        )
    entry = next((entry for entry in entries if entry.form == text), entries[0])
    if entry.value is not None and text != name:
        return Atom(text, entry, entry.value(text))
    if entry.value is None and text == entry.form:
        return Atom(text, entry)
    forms = " or ".join(entry.form for entry in entries)
    if text == name:
        why = "it needs a value"
    elif forms == name:
        why = "it takes no value"
    else:
        why = f"only {forms} can be assumed"
    raise UsageError(f"cannot assume {text!r}", why, f"write {forms}")


def _unmatched_sends(analysis: OpenAnalysis) -> Refusal | None:
    """Return why it is unknown how long sends and receives wait: they are not matched."""
    num_matched = np.zeros(len(analysis.measured.ranks.ranks), np.int64)
    for one in synchronizing_groups(analysis):
        is_send = one.together & one.waits.group.is_one_of(EXCHANGES)
        num_matched[list(one.waits.group.members)] += int(is_send.sum())
    known = dict(zip(analysis.measured.ranks.ranks, num_matched.tolist(), strict=True))
    judged = {result.rank: result.judged for result in analysis.measured.of(breakdown)}
    for rank in analysis.run.ranks:
        ids = [id_ for id_, name in rank.communication_operations.items() if name == EXCHANGE]
        if not ids:
            continue
        kernels, window = rank.operations.kernels, judged[rank.rank]
        since_ns = kernels.start_ns - window.window_start_ns
        is_judged = (since_ns >= 0) & (since_ns < window.window_ns)
        sends = np.flatnonzero(kernels.are_named(ids) & is_judged)
        sending_ns = intervals.union(kernels.start_ns[sends], kernels.ends(sends)).measure_ns
        rank.operations.release()
        if not len(sends):
            continue
        unmatched = max(1 - known.get(rank.rank, 0) / len(sends), 0.0)
        share = unmatched * sending_ns / max(window.window_ns, 1)
        if share > _MAX_UNMATCHED:
            return Refusal(
                f"the other side of sends, receives and all-to-alls that take {100 * share:.1f} %"
                f" of the time of rank {rank.rank} is unknown, and so is how long they wait for it",
                rank.trace.how_to_collect(Part.COMMUNICATION_CALLS),
            )
    return None
