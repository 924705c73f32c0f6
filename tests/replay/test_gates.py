"""Exports that lack some of what shows what waited for what: a gate fires, or the interval holds.

`python -m tests.replay.test_gates [FOLDER]` prints the tables of docs/testing.md: of simulated
programs, and of the real exports of a folder.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator import SCENARIOS
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.changed_programs import PAIRS
from tests.support.changes import DAMAGES, damaged, recorded
from tests.support.selection import long_after
from traceprof.replay.results import Answer, WhatIf
from traceprof.replay.whatif import whatif

Build = Callable[[np.random.Generator], Setup]

_ASSUMED = (
    "no-sync", "no-kernel-sync", "no-data-loading", "no-launch-stall", "launch=0",
    "kernel:.=0.5x", "link=2x", "copies-hidden", "communication=0", "no-serialization",
)  # fmt: skip
_MIN_HELD = 0.95
_MAX_FIRED = 0.05
_ROUNDING = 1e-3  # of a step
_CHANGED = 0.01  # of a step: less is no loss
_MORE = ("training", "ddp", "busy-python", "exposed-late-input", "initialisation", "mpi-wait",
         "warm-up", "link-counters", "small-collectives", "exposed-waiting")  # fmt: skip
_OFTEN = ("host-sync", "buckets-of-100")


def programs() -> dict[str, Build]:
    """Return all programs whose changes are known, and some more scenarios, by name."""
    built: dict[str, Build] = {}
    for pair in PAIRS:
        built.setdefault(pair.program, pair.build or SCENARIOS[pair.program].build)
    return built | {name: SCENARIOS[name].build for name in _MORE if name in SCENARIOS}


@dataclass(frozen=True)
class Case:
    """An answer of a damaged export, beside that of the intact one."""

    program: str  # the name of the export
    damage: str  # what it lacks
    assume: str
    is_refused: bool  # whether a gate fired
    holds: bool  # whether one did, or what is said holds what the intact one says
    is_lost: bool  # whether what is said is off by more than 1 % of the step, or refused


@cache
def asked(path: Path) -> WhatIf:
    return whatif(path, assume=_ASSUMED).whatif


def cases(program: str, path: Path, folder: Path) -> Iterator[Case]:
    """Yield the answers of damaged copies of an export that the intact one has, too."""
    intact = asked(path)
    truths = {one.assume: one for one in intact.answers if one.step_ns is not None}
    if intact.baseline is None or not truths:
        return
    for damage in DAMAGES:
        copy = folder / f"{program} without {damage}.sqlite"
        if damaged(path, copy, damage):
            for one in asked(copy).answers:
                if one.assume in truths:
                    yield _case(program, damage, one, truths[one.assume], intact.baseline.step_ns)
        copy.unlink()


def _case(program: str, damage: str, one: Answer, intact: Answer, step_ns: int) -> Case:
    truth, margin = intact.step_ns or 0, _ROUNDING * step_ns
    if one.step_ns is None:
        return Case(program, damage, one.assume, is_refused=True, holds=True, is_lost=True)
    least = (one.low_ns or 0) - margin
    most = np.inf if one.is_bound else (one.high_ns or 0) + margin
    is_lost = abs(one.step_ns - truth) > _CHANGED * step_ns
    return Case(program, damage, one.assume, False, bool(least <= truth <= most), is_lost)


def fired(path: Path) -> list[str]:
    """Return the gates that fire on an export; those that only say what is not recorded do not."""
    baseline = asked(path).baseline
    return [] if baseline is None else [gate.name for gate in baseline.gates if not gate.holds]


def held(found: Sequence[Case]) -> float:
    return sum(case.holds for case in found) / max(len(found), 1)


@pytest.mark.slow
@pytest.mark.parametrize("program", long_after(1, _OFTEN))
def test_what_an_export_lacks_is_noticed_or_in_the_interval(program: str, tmp_path: Path) -> None:
    path = recorded(programs()[program](np.random.default_rng(0)), tmp_path / "run.sqlite")
    assert fired(path) == []
    found = list(cases(program, path, tmp_path))
    assert len({case.damage for case in found}) >= 4
    assert [case for case in found if not case.holds] == []


@pytest.mark.long
def test_of_simulated_programs_nearly_all_are_noticed(tmp_path: Path) -> None:
    found: list[Case] = []
    num_fired, built = 0, programs()
    for program, build in built.items():
        path = recorded(build(np.random.default_rng(1)), tmp_path / f"{program}.sqlite")
        num_fired += bool(fired(path))
        found += cases(program, path, tmp_path)
    assert num_fired <= _MAX_FIRED * len(built)
    for damage in DAMAGES:
        of_damage = [case for case in found if case.damage == damage]
        assert len(of_damage) > 100
        assert held(of_damage) >= _MIN_HELD, [case for case in of_damage if not case.holds]


@pytest.mark.long
def test_of_real_exports_nearly_all_are_noticed(traces: Path, tmp_path: Path) -> None:
    found = [case for path in real(traces) for case in cases(path.stem, path, tmp_path)]
    assert len(found) > 500
    assert held(found) >= _MIN_HELD, [case for case in found if not case.holds]


def real(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.sqlite")), *sorted((folder / "pairs").rglob("*.sqlite"))]


def table(found: Sequence[Case]) -> list[str]:
    """Return the rows of a table: by export, and by damage."""
    head = "answers | refused | held | of these off by 1 % of a step | missed"
    rows = [f"| | {head} |", "|---" * 6 + "|"]
    for key in ("program", "damage"):
        names = dict.fromkeys(getattr(case, key) for case in found)
        rows += [_row(name, [one for one in found if getattr(one, key) == name]) for name in names]
    return [*rows, _row("**all**", found)]


def _row(name: str, some: Sequence[Case]) -> str:
    refused = sum(case.is_refused for case in some)
    missed = sum(not case.holds for case in some)
    off = sum(case.is_lost and case.holds and not case.is_refused for case in some)
    return (
        f"| {name} | {len(some)} | {refused} | {len(some) - refused - missed} | {off} | {missed} |"
    )


def main(folder: Path | None) -> None:
    """Print both tables, the gates that fire on intact exports, and what was missed."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        exports = {
            program: recorded(build(np.random.default_rng(1)), Path(scratch) / f"{program}.sqlite")
            for program, build in programs().items()
        }
        for paths in (exports, {} if folder is None else {one.stem: one for one in real(folder)}):
            of_set = [
                case
                for program, path in paths.items()
                for case in cases(program, path, Path(scratch))
            ]
            lines += [*table(of_set), ""]
            gates = {program: fired(path) for program, path in paths.items()}
            lines += [f"intact {key}: {', '.join(names)}" for key, names in gates.items() if names]
            lines += [f"missed: {case}" for case in of_set if not case.holds]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
