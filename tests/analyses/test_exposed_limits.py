"""What exposed communication promises at most, and what its advice brings on the second simulator.

Gradients accumulate over micro-batches, and each of them reduces: `no_sync()` on all but the last
one leaves these reductions out, and half the bytes make each half as long. Both also end the
slowdown of the kernels beside what goes.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.reference.gpu_machine import MS, Change, Steps, Thread
from tests.reference.gpu_programs import ADAM, COMPUTE, LAYER, NCCL, Program, ranks
from traceprof.analyses.exposed_communication import ID
from traceprof.analysis import analyze
from traceprof.findings import Finding, Saving

NUM_STEPS = 8


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
    """

    num_micro_batches: int
    num_buckets: int
    num_layers: int
    ms: float
    slowdown: float
    is_late: bool = False
    reduces_all: bool = True

    def step(self, thread: Thread, _: int) -> Steps:
        compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
        of_bucket, last = LAYER * self.num_layers, self.num_micro_batches - 1
        for micro_batch in range(self.num_micro_batches):
            reduces = self.reduces_all or micro_batch == last
            yield from thread.launch(compute, *of_bucket * max(self.num_buckets // 2, 1))
            for bucket in range(self.num_buckets):
                yield from thread.launch(compute, *of_bucket)
                if reduces and not self.is_late:
                    yield from self.reduction(thread, bucket)
            for bucket in range(self.num_buckets if reduces and self.is_late else 0):
                yield from self.reduction(thread, bucket)
            if reduces:
                yield from thread.follow(compute, nccl, 200)
        yield from thread.launch(compute, ADAM)

    def reduction(self, thread: Thread, bucket: int) -> Steps:
        nccl = thread.device.stream(NCCL)
        yield from thread.follow(nccl, thread.device.stream(COMPUTE), 100 + bucket)
        yield from thread.collective(nccl, "0", 2, self.ms * MS)

    def step_ns(self, path: Path | None = None, *, link: float = 1.0) -> float:
        """Return what the steady steps take, and write what happened."""
        program = Program(ranks(self.step, 2), "", slowdown=self.slowdown)
        machine = program.run(1, Change(link=link), NUM_STEPS)
        if path is not None:
            machine.write(path)
        return machine.step_ns(1, NUM_STEPS - 2)


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


def limit(found: list[Finding]) -> Saving:
    (saving,) = {one.saving for one in found if one.id == ID}
    assert saving is not None
    return saving


@pytest.mark.parametrize("name", RUNS)
def test_its_advice_gains_no_more_where_gradients_accumulate(name: str, tmp_path: Path) -> None:
    run, path = RUNS[name], tmp_path / "t.sqlite"
    last_only = replace(run, reduces_all=False)
    before_ns = run.step_ns(path)
    with closing(analyze(path)) as analysis:
        saving = limit(list(analysis.result.findings))
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
