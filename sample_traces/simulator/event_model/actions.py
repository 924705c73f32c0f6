"""Actions, the parts of the programs of simulated host threads.

A program is a sequence of actions: API calls, work of the host's own, NVTX ranges and marks. A
call puts entries into streams: operations, records of events, and waits for events. Times are ns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from sample_traces.simulator.kernels import Kernel


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of a process, which runs its entries in order."""

    process: int  # number of the process, which is the rank if each has one device
    device: int  # the CUDA ordinal
    id: int  # in the export


@dataclass(eq=False, slots=True)
class Event:
    """A CUDA event that is recorded once; waiting for it before that is an error."""


@dataclass(frozen=True, slots=True)
class Communicator:
    id: int  # the hash that is equal on all of its members
    group: str  # the name of its process group
    processes: tuple[int, ...]  # its members in the order of their ranks inside it


@dataclass(frozen=True, slots=True)
class KernelWork:
    """A compute kernel; `work_ns` is its time with the device to itself."""

    kernel: Kernel
    work_ns: int


@dataclass(frozen=True, slots=True)
class CommunicationWork:
    """One member's kernel of a NCCL operation."""

    kernel: Kernel  # as Nsight records it
    communicator: Communicator  # its operations run one after the other
    members: tuple[int, ...]  # the participating processes, all of which leave together
    transfer_ns: int  # from the arrival of the last one until they leave
    bytes: int  # the size of one rank's message


@dataclass(frozen=True, slots=True)
class CopyWork:
    kind: int  # of `schema.COPY_KINDS`
    bytes: int
    work_ns: int  # its time with the link to itself
    # runs one copy after the other; None within a device, and where copies share it
    engine: str | None
    link: str | None  # shared by concurrent copies; None within a device
    source_kind: int  # the kind of memory, as in `MEMCPY.srcKind`
    destination_kind: int  # the kind of memory, as in `MEMCPY.dstKind`
    source: int | None = None  # the device, of peer copies only
    destination: int | None = None  # the other device, of peer copies only


@dataclass(frozen=True, slots=True)
class MemsetWork:
    bytes: int
    work_ns: int


@dataclass(frozen=True, slots=True)
class Record:
    event: Event


@dataclass(frozen=True, slots=True)
class Wait:
    """An entry that blocks its stream until the event has been reached."""

    event: Event


Work = KernelWork | CommunicationWork | CopyWork | MemsetWork
Entry = Work | Record | Wait


@dataclass(frozen=True, slots=True)
class Call:
    api: str
    cost_ns: int  # its duration without waits
    entries: tuple[tuple[Stream, Entry], ...] = ()  # the entries that it puts into streams
    # it returns when this event, or all work so far in this stream, is done
    until: Stream | Event | None = None
    # it returns when all work so far on the device of the stream `until` is done
    device_wide: bool = False
    blocking: bool = False  # it returns when its own entries are done


@dataclass(frozen=True, slots=True)
class Busy:
    """Work of the host's own."""

    duration_ns: int
    # the innermost function of samples, and its library; None for the main program
    function: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Time off the CPU."""

    duration_ns: int


@dataclass(frozen=True, slots=True)
class Push:
    """Open an NVTX range on this thread."""

    name: str
    domain: int  # number in `machine.DOMAINS`, or of a kind that is not a domain of NVTX
    # name of the payload's schema and its fields, None without one
    payload: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Pop:
    """Close the range that was opened last."""


@dataclass(eq=False, slots=True)
class Rendezvous:
    """An operation of ranks without a GPU, which ends some time after its last member arrives."""

    num_members: int
    transfer_ns: int = 0  # from the arrival of the last one to its end
    # the arrivals of members so far, by process
    arrived_ns: dict[int, int] = field(default_factory=dict)
    over_ns: int = -1  # its end; -1 until the last member has arrived


Leaving = tuple[Rendezvous, int]
"""A rendezvous, and the delay of a member after its end."""


@dataclass(frozen=True, slots=True)
class Arrive:
    """Take part in a rendezvous from now on; the thread continues."""

    rendezvous: Rendezvous


@dataclass(frozen=True, slots=True)
class Await:
    """Block until the process has left a rendezvous."""

    leaving: Leaving


@dataclass(frozen=True, slots=True)
class Start:
    """Open an NVTX range that does not nest, and ends when the process has left all rendezvous."""

    name: str
    domain: int  # number in `machine.DOMAINS`
    until: tuple[Leaving, ...]  # one rendezvous or more


@dataclass(frozen=True, slots=True)
class Mark:
    name: str
    domain: int  # number in `machine.DOMAINS`


Action = Call | Busy | Sleep | Push | Pop | Arrive | Await | Start | Mark


@dataclass(frozen=True, slots=True)
class Thread:
    """A host thread: its process, and its number in it, 0 for the main one."""

    process: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class HostRecord:
    """Time that a thread slept, or spent in a named function."""

    thread: Thread
    action: Busy | Sleep
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class MarkRecord:
    thread: Thread
    action: Mark
    time_ns: int


@dataclass(eq=False, slots=True)
class CallRecord:
    thread: Thread
    action: Call
    correlation: int  # unique in the process, in the order of starts
    start_ns: int
    end_ns: int = -1  # of the call; -1 while it lasts
    # start and end of its wait for room in the launch queue; None without a wait
    stall_ns: tuple[int, int] | None = None
    depth: int = 0  # operations of the process that were launched and not over at its start


class Clock:
    """A queue of planned events that runs them in order of time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._planned: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time_ns: int, happen: Callable[[], None]) -> None:
        """Plan an event for a time, now at the earliest."""
        heapq.heappush(self._planned, (max(time_ns, self.now_ns), next(self._numbers), happen))

    def run(self) -> None:
        while self._planned:
            self.now_ns, _, happen = heapq.heappop(self._planned)
            happen()
