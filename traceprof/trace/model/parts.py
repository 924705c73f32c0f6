"""The parts that a trace may hold, and how to collect one that it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Part(Enum):
    """Something that a trace may hold, or lack because nobody collected or exported it."""

    GPU_OPERATIONS = auto()
    """Any work of a GPU."""
    KERNELS = auto()
    COPIES = auto()
    """Memory copies."""
    COPY_MEMORY = auto()
    """The kinds of memory that copies go between."""
    GRAPH_KERNELS = auto()
    """The kernels inside CUDA graphs; lacking where graphs were traced as a whole."""
    API_CALLS = auto()
    SYNCHRONIZATIONS = auto()
    """Waits of the host and of streams."""
    EVENT_RECORDS = auto()
    """Recordings of CUDA events, for which others wait."""
    STALL_RECORDS = auto()
    """Launches that were blocked by a full queue, as the driver tells."""
    RANGES = auto()
    """Named ranges on the host (NVTX)."""
    COMMUNICATION_CALLS = auto()
    """Calls of the communication library, with their sizes."""
    MESSAGE_SIZES = auto()
    """The sizes of calls that are there without them."""
    COMMUNICATORS = auto()
    """Which communicator and peer each call of the communication library is for."""
    HOST_CODE = auto()
    """What the host's threads ran outside of API calls."""
    THREAD_SWITCHES = auto()
    """When threads were put on a CPU and taken off it."""
    SYSTEM_CALLS = auto()
    """Calls of the operating system in which threads slept."""
    SAMPLES = auto()
    """The functions in which running threads were sampled."""
    MPI_CALLS = auto()
    LINK_COUNTERS = auto()
    """Sampled counters of the GPUs' NVLink and PCIe."""
    NETWORK_COUNTERS = auto()
    """Sampled counters of NICs, beside those of the GPUs."""
    DENSE_COUNTERS = auto()
    """Counters sampled as often as possible."""
    COUNTED_GPUS = auto()
    """Which rank's each of the GPUs is whose counters were sampled."""


@dataclass(frozen=True, slots=True)
class HowToCollect:
    """How the parts of a trace of one format are collected; it outlives the open trace.

    Attributes:
        format_name: the program that writes the format, such as `Nsight Systems`.
        texts: for each part what to run, or to do else.
    """

    format_name: str
    texts: Mapping[Part, str]

    def __call__(self, part: Part) -> str:
        """Return what to record or export with so that a trace holds the part."""
        return self.texts[part]
