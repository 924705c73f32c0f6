"""Programs of processes without a GPU: `instrument`'s ranges over Gloo."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sample_traces.simulator.event_model.actions import Arrive, Await, Busy, Pop, Push, Start
from sample_traces.simulator.machine import TRACEPROF_DOMAIN
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sample_traces.simulator.event_model.actions import Action, Leaving, Rendezvous

US = 1_000
_HOOK_NS, _CALL_NS, _COPY_BACK_NS = 5 * US, 20 * US, 30 * US


class CpuProgram:
    """Collects the actions of a process's main thread.

    Attributes:
        process: its number, which is its rank.
        actions: so far.
    """

    def __init__(self, process: int) -> None:
        """Begin an empty program."""
        self.process = process
        self.actions: list[Action] = []
        self._num_in_group: dict[str, int] = defaultdict(int)

    def busy(self, duration_ns: int) -> None:
        """Do work outside of all ranges."""
        self.actions.append(Busy(duration_ns))

    def work(self, name: str, duration_ns: int) -> None:
        """Do work within a range."""
        with self.range(name):
            self.busy(duration_ns)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Enclose the actions that the block adds in a range of `instrument`."""
        self.actions.append(Push(name, TRACEPROF_DOMAIN))
        yield
        self.actions.append(Pop())

    def gather(self, rendezvous: Rendezvous) -> None:
        """Wait for all members of a rendezvous without a range."""
        self.actions += [Arrive(rendezvous), Await((rendezvous, 0))]

    def all_reduce(self, leaving: Leaving, group: str, size: int) -> None:
        """Reduce a tensor and wait for it.

        Args:
            leaving: the operation, and the delay of this process after its end.
            group: the name of the process group.
            size: of the tensor, in bytes.
        """
        with self.range(self._label(leaving[0], group, size)):
            self.actions += [Arrive(leaving[0]), Await(leaving)]

    def backward(self, buckets: Sequence[tuple[int, Leaving]], group: str, size: int) -> None:
        """Compute gradients, reduce each bucket while computing goes on, and wait for all of them.

        Args:
            buckets: the time when each is ready, in ns since the backward began, and its operation.
            group: the name of the process group.
            size: of a bucket, in bytes.
        """
        with self.range(labels.BACKWARD):
            passed_ns = 0
            leavings: tuple[Leaving, ...] = ()
            for index, (ready_ns, leaving) in enumerate(buckets):
                self.busy(ready_ns - passed_ns)
                passed_ns = ready_ns + _HOOK_NS + _CALL_NS
                leavings += (leaving,)
                facts = f"index={index} bytes={size} dtype=float32"
                facts += f" last={int(index == len(buckets) - 1)}"
                reduced = tuple((rendezvous, later + US) for rendezvous, later in leavings)
                self._start(f"{labels.BUCKET} {facts}", reduced)
                self.busy(_HOOK_NS)
                text = self._label(leaving[0], group, size)
                self._start(text, leavings)
                with self.range(text):
                    self.actions.append(Arrive(leaving[0]))
                    self.busy(_CALL_NS)
            self.actions += [Await(leaving) for leaving in leavings]
            self.busy(_COPY_BACK_NS)

    def _start(self, name: str, until: tuple[Leaving, ...]) -> None:
        self.actions.append(Start(name, TRACEPROF_DOMAIN, until))

    def _label(self, rendezvous: Rendezvous, group: str, size: int) -> str:
        facts = {"bytes": size, "dtype": "float32", "group": group, "rank": self.process}
        facts |= {"size": rendezvous.num_members, "seq": self._num_in_group[group]}
        self._num_in_group[group] += 1
        return str(labels.Label("all_reduce", {name: str(fact) for name, fact in facts.items()}))
