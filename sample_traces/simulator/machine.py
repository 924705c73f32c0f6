"""Simulated machines and their metadata in an export: processes, threads, GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from sample_traces.simulator import nsight_writer
from sample_traces.simulator.nsight_writer import NsightWriter
from traceprof import labels
from traceprof.trace.nsight import schema

_FIRST_PID = 4242
_PIDS_APART = 100
_AUTOGRAD_THREAD = 60  # added to the pid
SESSION_START_NS = 1_767_225_600_000_000_000  # the beginning of 2026
HOSTNAME = "simulated"

LEAD_NS = 1_000_000
"""From the session's start to the first event."""

DEFAULT_DOMAIN, NCCL_DOMAIN, TRACEPROF_DOMAIN = 0, 1, 2
DOMAINS = {NCCL_DOMAIN: "NCCL", TRACEPROF_DOMAIN: labels.DOMAIN}
# Kinds of regions that are no ranges of NVTX: calls with tables of their own, and purposes, which
# no export has.
OS_CALL, MPI_CALL, MPI_COLLECTIVE, MPI_POINT_TO_POINT, PROFILER, LOADING, PURPOSE = range(-7, 0)
MPI_WORLD = 0x7F00
"""The handle of the communicator of all ranks of MPI."""


HOST_TABLES = frozenset(
    {schema.EVENT_RECORD.name, schema.SWITCHES, schema.SAMPLES, schema.OS_CALLS}
)
"""Tables that captures have only if their options request them."""


TORCH_THREADS = ("python", "pt_autograd_0")


@dataclass(frozen=True, slots=True)
class Process:
    number: int  # of the process, which is its rank if each has one device

    @property
    def pid(self) -> int:
        return _FIRST_PID + _PIDS_APART * self.number

    @property
    def id(self) -> int:
        """The globalPid."""
        return nsight_writer.VM_ID | self.pid << 24

    def thread(self, number: int) -> int:
        """Return the globalTid of a thread: 0 runs the training loop, 1 the backward."""
        main = self.id | self.pid
        return main if number == 0 else main + _AUTOGRAD_THREAD + number - 1

    def place(self, device: int) -> dict[str, int]:
        """Return the columns for the place of a GPU operation."""
        return {
            "globalPid": self.id,
            "deviceId": device,
            "contextId": device + 1,
            "greenContextId": 0,
        }


@dataclass(frozen=True, slots=True)
class Machine:
    command: str  # the command line that reproduces this run
    board: Board | None  # the kind of all GPUs; None without GPUs
    devices: tuple[tuple[int, ...], ...]  # of each process, its CUDA ordinals
    # of the threads of each process, the main one first, named like the process
    thread_names: tuple[str, ...] = TORCH_THREADS
    # False if the capture had Command Buffer Full records but the exporter dropped them, as those
    # of 2024.5 to 2025.1 did: only their name is left
    has_overhead_rows: bool = True
    has_json_payloads: bool = False  # NCCL's payloads as JSON text instead of binary data
    processes: tuple[int, ...] | None = None  # in the export; None for all
    hostname: str = HOSTNAME  # of the machine
    session_start_ns: int = SESSION_START_NS  # the reading of its clock at time 0, in ns since 1970
    num_cores: int | None = None  # of the machine; None if the capture does not have it
    host_tables: frozenset[str] = frozenset()  # the host tables of the capture, of `HOST_TABLES`
    # the number of ranks of a program of MPI, which has no ranges of NVTX; else 0
    mpi_size: int = 0


def write_machine(writer: NsightWriter, machine: Machine) -> None:
    """Write the tables that do not depend on time: command and machine."""
    started = datetime.fromtimestamp(machine.session_start_ns // 10**9, timezone.utc)
    written = started.replace(tzinfo=None).isoformat()
    program, *arguments = machine.command.split()
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
    for table in schema.EXPORT_METADATA:  # each version has one of them
        writer.add(table, {"name": ["DERIVED_BY"], "value": [f"{machine.command} (simulated)"]})
    writer.add(
        schema.SESSION_START,
        {
            "utcEpochNs": machine.session_start_ns,
            "utcTime": written,
            "localTime": written,
            "systemClockNs": 0,
        },
    )
    writer.add(
        schema.SYSTEM_ENVIRONMENT,
        {
            "globalVid": nsight_writer.VM_ID,
            "devStateName": "Local (CLI)",
            "name": "Hostname",
            "nameEnum": 619,
            "value": machine.hostname,
        },
    )
    if machine.num_cores is not None:
        writer.add(
            schema.SYSTEM_ENVIRONMENT,
            {
                "globalVid": nsight_writer.VM_ID,
                "devStateName": "Local (CLI)",
                "name": "CpuCores",
                "nameEnum": 1,
                "value": str(machine.num_cores),
            },
        )
    for number, devices in enumerate(machine.devices):
        if machine.processes is None or number in machine.processes:
            _write_process(writer, machine, Process(number), devices)


def write_session(writer: NsightWriter, end_ns: int) -> None:
    row = {"globalVid": nsight_writer.VM_ID, "duration": end_ns, "startTime": 0, "stopTime": end_ns}
    writer.add(schema.ANALYSIS_DETAILS, row)


def _write_process(
    writer: NsightWriter, machine: Machine, process: Process, devices: tuple[int, ...]
) -> None:
    names = machine.thread_names
    writer.add(schema.PROCESSES, {"globalPid": process.id, "pid": process.pid, "name": names[0]})
    writer.add(
        schema.THREAD_NAMES,
        {
            "nameId": [writer.string(name) for name in names],
            "priority": 20,
            "globalTid": [process.thread(number) for number in range(len(names))],
        },
    )
    if machine.board is not None:
        for device in devices:
            # GPUs of several machines share ordinals, but are different ones.
            serial = device if machine.processes is None else process.number
            _write_board(writer, machine.board, process, device, serial)
    if machine.mpi_size:
        rank = process.number
        writer.add(schema.MPI_RANKS, {"globalTid": process.thread(0), "rank": rank})
        world = {"commHandle": MPI_WORLD, "size": machine.mpi_size, "localRank": rank}
        writer.add(schema.MPI_COMMUNICATORS, {"rank": rank, "timestamp": LEAD_NS, **world})
    else:
        domains = DOMAINS if devices else {TRACEPROF_DOMAIN: labels.DOMAIN}
        writer.add(
            schema.NVTX.name,
            {
                "start": [LEAD_NS] * len(domains),
                "eventType": schema.NVTX_DOMAIN,
                "text": list(domains.values()),
                "globalTid": process.thread(0),
                "domainId": list(domains),
            },
        )


def _write_board(
    writer: NsightWriter, board: Board, process: Process, device: int, serial: int
) -> None:
    uuid = f"00000000-0000-0000-0000-{serial:012x}"
    major, minor = board.compute_capability
    writer.add(
        schema.GPU_INFO,
        {
            "vmId": nsight_writer.VM_ID,
            "id": device,
            "name": board.name,
            "busLocation": f"0000:{device + 1:02x}:00.0",
            "isDiscrete": 1,
            "totalMemory": board.memory_bytes,
            "memoryBandwidth": board.memory_bytes_per_s,
            "clockRate": board.clock_hz,
            "smCount": board.num_multiprocessors,
            "uuid": uuid,
            "chipName": board.chip,
            "cuDevice": device,
            "computeMajor": major,
            "computeMinor": minor,
        },
    )
    writer.add(
        schema.CUDA_DEVICES,
        {
            "gpuId": device,
            "cudaId": device,
            "pid": process.pid,
            "uuid": uuid,
            "numMultiprocessors": board.num_multiprocessors,
        },
    )


@dataclass(frozen=True, slots=True)
class Board:
    name: str  # as Nsight gives it
    chip: str  # of the GPU
    num_multiprocessors: int  # SMs
    memory_bytes: int  # of device memory
    memory_bytes_per_s: int  # its bandwidth
    clock_hz: int  # of the SMs
    compute_capability: tuple[int, int]  # major and minor


A100 = Board(
    "NVIDIA A100-SXM4-80GB", "GA100", 108, 80 << 30, 2_039_000_000_000, 1_410_000_000, (8, 0)
)
A100_PCIE = Board(
    "NVIDIA A100 80GB PCIe", "GA100", 108, 80 << 30, 1_935_000_000_000, 1_410_000_000, (8, 0)
)
RTX_3090 = Board(
    "NVIDIA GeForce RTX 3090", "GA102", 82, 24 << 30, 936_000_000_000, 1_695_000_000, (8, 6)
)
