"""Where a simulated run took place: processes, threads, GPUs, and a session without a clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from traceprof import labels
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.trace.nsight.writer import NsightWriter

_FIRST_PID = 4242
_PIDS_APART = 100
_AUTOGRAD_THREAD = 60  # added to the pid
SESSION_START_NS = 1_767_225_600_000_000_000  # the beginning of 2026
HOSTNAME = "simulated"

DEFAULT_DOMAIN, NCCL_DOMAIN, TRACEPROF_DOMAIN = 0, 1, 2
DOMAINS = {NCCL_DOMAIN: "NCCL", TRACEPROF_DOMAIN: labels.DOMAIN}


@dataclass(frozen=True)
class Rank:
    """One process, on the device of its own local rank.

    Attributes:
        number: its rank, and its CUDA ordinal.
    """

    number: int

    @property
    def pid(self) -> int:
        """Its process's id."""
        return _FIRST_PID + _PIDS_APART * self.number

    @property
    def process(self) -> int:
        """Its process's globalPid."""
        return schema.VM_ID | self.pid << 24

    @property
    def main_thread(self) -> int:
        """The globalTid of the thread that runs the training loop."""
        return self.process | self.pid

    @property
    def autograd_thread(self) -> int:
        """The globalTid of the thread that runs the backward."""
        return self.main_thread + _AUTOGRAD_THREAD

    @cached_property
    def device(self) -> Mapping[str, int]:
        """The columns that say where a GPU operation ran."""
        return {
            "globalPid": self.process,
            "deviceId": self.number,
            "contextId": self.number + 1,
            "greenContextId": 0,
        }


def write_metadata(
    writer: NsightWriter,
    command: str,
    hostname: str = HOSTNAME,
    session_start_ns: int = SESSION_START_NS,
) -> None:
    """Write how the run was made, where, and when its session started, in ns since 1970."""
    started = datetime.fromtimestamp(session_start_ns // 10**9, timezone.utc)
    written = started.replace(tzinfo=None).isoformat()
    program, *arguments = command.split()
    writer.add(
        schema.CAPTURE_METADATA,
        {
            "name": [
                "CAPTURE_EVENT_TYPE",
                "CAPTURE_EVENT_TYPE",
                "PROCESS_0:COMMAND",
                *(f"PROCESS_0:ARGUMENT_{index}" for index in range(len(arguments))),
            ],
            "value": ["NvtxEvents", "Cuda", program, *arguments],
        },
    )
    for table in schema.EXPORT_METADATA:  # one of them is in the version that is written
        writer.add(table, {"name": ["DERIVED_BY"], "value": [f"{command} (simulated)"]})
    writer.add(
        schema.SESSION_START,
        {
            "utcEpochNs": session_start_ns,
            "utcTime": written,
            "localTime": written,
            "systemClockNs": 0,
        },
    )
    writer.add(
        schema.SYSTEM_ENVIRONMENT,
        {
            "globalVid": schema.VM_ID,
            "devStateName": "Local (CLI)",
            "name": "Hostname",
            "nameEnum": 619,
            "value": hostname,
        },
    )


def write_process(writer: NsightWriter, rank: Rank) -> None:
    """Write a rank's process, its threads, its GPU and its NVTX domains."""
    uuid = f"00000000-0000-0000-0000-{rank.number:012x}"
    writer.add(schema.PROCESSES, {"globalPid": rank.process, "pid": rank.pid, "name": "python"})
    writer.add(
        schema.THREAD_NAMES,
        {
            "nameId": [writer.string("python"), writer.string(f"pt_autograd_{rank.number}")],
            "priority": 20,
            "globalTid": [rank.main_thread, rank.autograd_thread],
        },
    )
    writer.add(
        schema.GPU_INFO,
        {
            "vmId": schema.VM_ID,
            "id": rank.number,
            "name": "NVIDIA A100-SXM4-80GB",
            "busLocation": f"0000:{rank.number + 1:02x}:00.0",
            "isDiscrete": 1,
            "l2CacheSize": 40 << 20,
            "totalMemory": 80 << 30,
            "memoryBandwidth": 2_039_000_000_000,
            "clockRate": 1_410_000_000,
            "smCount": 108,
            "uuid": uuid,
            "chipName": "GA100",
            "cuDevice": rank.number,
            "computeMajor": 8,
            "computeMinor": 0,
        },
    )
    writer.add(
        schema.CUDA_DEVICES,
        {
            "gpuId": rank.number,
            "cudaId": rank.number,
            "pid": rank.pid,
            "uuid": uuid,
            "numMultiprocessors": 108,
        },
    )
    writer.add(
        schema.NVTX.name,
        {
            "start": [1_000_000] * len(DOMAINS),
            "eventType": schema.NVTX_DOMAIN,
            "text": list(DOMAINS.values()),
            "globalTid": rank.main_thread,
            "domainId": list(DOMAINS),
        },
    )
