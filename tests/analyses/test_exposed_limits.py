"""What exposed communication promises at most, and what its advice brings on the second simulator.

Gradients accumulate over micro-batches, and each of them reduces: `no_sync()` on all but the last
one leaves these reductions out, and half the bytes make each half as long. Both also end the
slowdown of the kernels beside what goes.

Where no step is replayed the limit is all time involved: what is exposed, and what kernels beside
communication gain at most.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from sample_traces.simulator.scenarios import SCENARIOS
from tests.reference.gpu_machine import MS, Change, Steps, Thread
from tests.reference.gpu_programs import ADAM, COMPUTE, LAYER, NCCL, Program, ranks
from tests.support.changes import damaged, faster_links, recorded, step_ns
from tests.support.selection import known, long_after
from tests.support.traces import closed_analysis
from traceprof.analyses.exposed_communication import ID
from traceprof.findings import Saving
from traceprof.replay.whatif import whatif

NUM_STEPS = 8
SAME = 2_000  # ns by which a replay's steps end elsewhere


@dataclass(frozen=True)
class Accumulation:
    """Steps of DDP on two ranks.

    Attributes:
        num_micro_batches: of a step.
        num_buckets: of gradients.
        num_layers: whose gradients are a bucket.
        ms: of a reduction.
        slowdown: of kernels beside one.
        is_late: whether reductions begin when the backward is over.
        reduces_all: whether micro-batches reduce that are not the last one.
        pauses: whether every second step reduces nothing.
        forward: how long the forward's kernels take, which have the names and grids of the others.
        is_read: whether the optimizer waits for the reductions; else it never runs alone.
    """

    num_micro_batches: int
    num_buckets: int
    num_layers: int
    ms: float
    slowdown: float
    is_late: bool = False
    reduces_all: bool = True
    pauses: bool = False
    forward: float = 1.0
    is_read: bool = True

    def step(self, thread: Thread, number: int) -> Steps:
        compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
        of_bucket, last = LAYER * self.num_layers, self.num_micro_batches - 1
        of_forward = [replace(kernel, ns=kernel.ns * self.forward) for kernel in of_bucket]
        for micro_batch in range(self.num_micro_batches):
            reduces = self.reduces_all or micro_batch == last
            reduces &= not self.pauses or number % 2 == 0
            yield from thread.launch(compute, *of_forward * max(self.num_buckets // 2, 1))
            for bucket in range(self.num_buckets):
                yield from thread.launch(compute, *of_bucket)
                if reduces and not self.is_late:
                    yield from self.reduction(thread, bucket)
            for bucket in range(self.num_buckets if reduces and self.is_late else 0):
                yield from self.reduction(thread, bucket)
            if reduces and self.is_read:
                yield from thread.follow(compute, nccl, 200)
        yield from thread.launch(compute, ADAM)

    def reduction(self, thread: Thread, bucket: int) -> Steps:
        nccl = thread.device.stream(NCCL)
        yield from thread.follow(nccl, thread.device.stream(COMPUTE), 100 + bucket)
        yield from thread.collective(nccl, "0", 2, self.ms * MS)

    def step_ns(self, path: Path | None = None, *, link: float = 1.0) -> float:
        """Return what the steady steps take, and write what happened.

        Where not all reduce the first one counts, too, as it does in the analysis.
        """
        program = Program(ranks(self.step, 2), "", slowdown=self.slowdown)
        machine = program.run(1, Change(link=link), NUM_STEPS)
        if path is not None:
            machine.write(path)
        return machine.step_ns(0 if self.pauses else 1, NUM_STEPS - 2)


RUNS = {
    "hidden": Accumulation(4, 4, 1, 0.3, 1.0),
    "as long as compute": Accumulation(4, 4, 1, 0.9, 1.0),
    "longer than compute": Accumulation(4, 4, 1, 2.2, 1.0),
    "hidden, slows down": Accumulation(4, 4, 2, 0.9, 1.8),
    "longer than compute, slows down": Accumulation(2, 4, 1, 1.5, 1.8),
    "several layers in a bucket": Accumulation(2, 4, 3, 2.5, 1.8),
    "late": Accumulation(4, 4, 1, 1.5, 1.0, is_late=True),
    "one bucket": Accumulation(2, 1, 1, 2.5, 1.2),
}


def limit(path: Path, *, savings: bool | None = None) -> Saving:
    found = closed_analysis(path, savings=savings).findings
    (saving,) = {one.saving for one in found if one.id == ID}
    return known(saving)


SEEN_ALONE = {
    "short, seen alone": Accumulation(1, 4, 2, 0.9, 1.5, pauses=True),
    "long, seen alone": Accumulation(2, 4, 2, 2.5, 1.8, pauses=True),
    "other work, seen alone": Accumulation(1, 4, 2, 1.5, 1.5, pauses=True, forward=1.25),
}
OTHER_WORK = {
    f"forward of {forward}": Accumulation(1, 4, 2, ms, 2.2, forward=forward)
    for forward, ms in ((0.5, 0.9), (0.8, 2.5), (1.25, 1.5), (2.0, 0.9))
}


DAMAGES = ("", "synchronize calls", "stream waits and event records")
KINDS = ("hidden", "longer than compute, slows down", "late")  # others of RUNS lie between these


@pytest.mark.parametrize(
    "name",
    long_after(
        6,
        dict.fromkeys(
            [*KINDS, "short, seen alone", *[*OTHER_WORK][:2], *RUNS, *SEEN_ALONE, *OTHER_WORK]
        ),
    ),
)
def test_nothing_gains_more_where_no_step_is_replayed(name: str, tmp_path: Path) -> None:
    run = {**RUNS, **SEEN_ALONE, **OTHER_WORK}[name]
    path, copy = tmp_path / "t.sqlite", tmp_path / "damaged.sqlite"
    gain_ns = run.step_ns(path) - run.step_ns(link=0.0)
    for damage in DAMAGES:
        if damage:
            assert damaged(path, copy, damage)
        saving = limit(copy if damage else path, savings=bool(damage))
        assert saving.high_ns is not None, damage
        if saving.assume is None or name not in OTHER_WORK:
            assert gain_ns <= saving.high_ns, damage
        if name in SEEN_ALONE and not damage:
            # Kernels were alone at the same place: their slowdown is measured.
            assert saving.high_ns == pytest.approx(gain_ns, rel=0.05)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(1, 200))]
)
def test_nothing_gains_more_in_drawn_programs(seed: int, tmp_path: Path) -> None:
    draw = Random(seed).choice
    run = Accumulation(
        num_micro_batches=draw([1, 2, 4]), num_buckets=draw([1, 2, 4]), num_layers=draw([1, 2, 3]),
        ms=draw([0.2, 0.5, 0.9, 1.5, 2.5]), slowdown=draw([1.0, 1.2, 1.5, 2.2]),
        is_late=draw([False, False, True]), reduces_all=draw([False, True]),
        pauses=draw([False, False, True]), forward=draw([0.5, 0.8, 1.0, 1.25, 2.0]),
        is_read=draw([True, True, False]),
    )  # fmt: skip
    path = tmp_path / "t.sqlite"
    gain_ns = run.step_ns(path) - run.step_ns(link=0.0)
    for one in closed_analysis(path).findings:
        if one.id == ID:
            assert gain_ns <= (known(one.saving).high_ns or 0)
    (answer,) = whatif(path, assume=["communication=0"]).whatif.answers
    assert answer.change_ns is not None
    # Otherwise kernels do not lose as much as their like, which is the answer's condition.
    if run.forward == 1.0:
        assert gain_ns <= -answer.change_ns + SAME


@pytest.mark.parametrize("scenario", ["pipeline-copies", "peer-copies", "training"])
def test_who_waits_for_copies_of_others_may_idle_less(scenario: str, tmp_path: Path) -> None:
    setup = SCENARIOS[scenario].build(np.random.default_rng(0))
    result = setup.run()
    gain_ns = step_ns(result) - step_ns(faster_links(setup, 0.0), result)
    path = recorded(setup, tmp_path / "t.sqlite", result)
    saving = limit(path, savings=False)
    assert saving.high_ns is not None
    assert 0 < gain_ns <= saving.high_ns


@pytest.mark.parametrize("name", long_after(len(KINDS), dict.fromkeys([*KINDS, *RUNS])))
def test_its_advice_gains_no_more_where_gradients_accumulate(name: str, tmp_path: Path) -> None:
    run, path = RUNS[name], tmp_path / "t.sqlite"
    last_only = replace(run, reduces_all=False)
    before_ns = run.step_ns(path)
    saving = limit(path)
    gains = [
        before_ns - one.step_ns(link=link)
        for one, link in ((last_only, 1.0), (run, 0.5), (last_only, 0.5))
    ]
    most_ns = before_ns - run.step_ns(link=0.0)
    assert saving.assume == "communication=0"
    assert saving.high_ns is not None
    assert 0 < max(gains) < saving.high_ns
    # No further off than what is unknown of a replay: 1 % of it, and what starts beside what.
    assert saving.high_ns == pytest.approx(most_ns, rel=0.04)
