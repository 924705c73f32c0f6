"""The parts that a trace may hold, and how to collect missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from traceprof.structs import Record


class Part(Enum):
    """A part of a trace, which is missing if it was not collected or exported."""

    GPU_OPERATIONS = auto()
    """Any work of a GPU."""
    KERNELS = auto()
    COPIES = auto()
    """Memory copies."""
    COPY_MEMORY = auto()
    """The kinds of memory of copies."""
    EVERY_OPERATION = auto()
    """All that the GPU did in the capture; missing if the profiler warns that it lost some."""
    END = auto()
    """The end of the file; missing if it was cut short."""
    GRAPH_KERNELS = auto()
    """The kernels inside CUDA graphs; missing if graphs were traced as a whole."""
    API_CALLS = auto()
    SYNCHRONIZATIONS = auto()
    """Waits of the host and of streams."""
    EVENT_RECORDS = auto()
    """Recordings of CUDA events, the targets of waits."""
    STALL_RECORDS = auto()
    """The driver's records of launches that a full queue blocked."""
    RANGES = auto()
    """Named ranges on the host (NVTX)."""
    COMMUNICATION_CALLS = auto()
    """Calls of the communication library, with their sizes."""
    MESSAGE_SIZES = auto()
    """The sizes of recorded calls."""
    COMMUNICATORS = auto()
    """The communicator and peer of each call of the communication library."""
    HOST_CODE = auto()
    """Activity of host threads outside of API calls."""
    THREAD_SWITCHES = auto()
    """Context switches of threads."""
    SYSTEM_CALLS = auto()
    """Calls of the operating system in which threads slept."""
    SAMPLES = auto()
    """Samples of the functions of running threads."""
    MPI_CALLS = auto()
    LINK_COUNTERS = auto()
    """Sampled counters of the GPUs' NVLink and PCIe."""
    NETWORK_COUNTERS = auto()
    """Sampled counters of NICs, beside those of the GPUs."""
    DENSE_COUNTERS = auto()
    """Counters sampled as often as possible."""
    COUNTED_GPUS = auto()
    """The ranks of the GPUs whose counters were sampled."""


class HowToCollect(Record, frozen=True):
    """Instructions to collect the parts of one format; they outlive the open trace."""

    format_name: str  # the program that writes the format, such as `Nsight Systems`
    texts: Mapping[Part, str]  # for each part the command to run, or another step

    def __call__(self, part: Part) -> str:
        """Return how to record or export the part."""
        return self.texts[part]
