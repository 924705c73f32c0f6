"""An independent reference for the places of what a process did, for tests only: plain lists.

A place is an NVTX range of the program or its framework: none of a single operator of PyTorch, of a
function of C++ or of a library, of communication by `instrument`, and none that is a step. A place
tells what a silent thread did unless it holds a whole step; with fewer than three steps, unless it
is longer than half of the process's time from its first operation to its last.

`place_at` is the innermost place of a thread at a time: of those that were pushed and are open the
one that began last. Where the thread has none it is that of another thread of the process, first of
the one that spent most time in places, unless it loads data there.
"""

import re
from collections import Counter
from typing import NamedTuple

from tests.reference.host import DATA_LOADING_RANGE
from tests.reference.nsight_export import Export
from tests.reference.spans import length, union
from tests.reference.training import STEP_PATTERNS, host_steps

_OPERATORS = re.compile(
    r"(?!FSDP::)[\w.<> ]+::[\w:.~<>]|\w+Backward\d|detach_?(,|$)|record_param_comms"
)
_LIBRARIES = re.compile(r"nccl|gloo:|ucp_|uct_|MPI_|cublas|cudnn|cusolver|cusparse|cufft|\{")
_INTERNAL = re.compile(r"_NoopSaveInputs|RegisterPostBackward|ProfilerStep|PyTorch Profiler")
_LABELS = re.compile(r"[\w ]+ (bytes|dtype|group|size|op|peer)=|(bucket|wait|cut)\b")
MIN_STEPS = 3


class Place(NamedTuple):
    start: int
    end: int
    thread: int
    name: str

    @property
    def loads_data(self) -> bool:
        return bool(DATA_LOADING_RANGE.search(self.name)) or self.name.startswith(
            ("[DALI]", "enumerate(Data")
        )


def places(export: Export, process: int) -> list[Place]:
    """All places of a process, by start, longer ones first."""
    found = []
    for span in export.ranges.get(process, []):
        name = span.name.partition(", ")[0]
        if not name or any(
            kind.match(name) for kind in (_OPERATORS, _LIBRARIES, _INTERNAL, _LABELS)
        ):
            continue
        if any(re.fullmatch(pattern, name) for pattern in STEP_PATTERNS):
            continue
        found.append(Place(span.start, span.end, span.thread, name))
    return sorted(found, key=lambda place: (place.start, -place.end))


def telling_places(export: Export, process: int) -> list[Place]:
    """The places that say what a silent thread did."""
    _, steps = host_steps(export, process)
    ranks = [ops for (owner, _), ops in export.ranks.items() if owner == process]
    low = min(op.start for operations in ranks for op in operations)
    high = max(op.end for operations in ranks for op in operations)
    if len(steps) < MIN_STEPS:
        return [p for p in places(export, process) if 2 * (p.end - p.start) <= high - low]
    return [
        place
        for place in places(export, process)
        if not any(place.start <= begin and end <= place.end for _, begin, end in steps)
    ]


def place_at(export: Export, process: int, thread: int, time: int) -> str | None:
    """The name of the place of a thread at a time, None without one."""
    found = places(export, process)
    spent = Counter(
        {
            number: length(union((p.start, p.end) for p in found if p.thread == number))
            for number in {p.thread for p in found}
        }
    )
    for number in (thread, *(other for other, _ in spent.most_common() if other != thread)):
        open_now = [p for p in found if p.thread == number and p.start <= time < p.end]
        if open_now:
            innermost = max(enumerate(open_now), key=lambda item: (item[1].start, item[0]))[1]
            if number == thread or not innermost.loads_data:
                return innermost.name
    return None
