"""Meanings of a straggler's causes, and advice for each."""

from __future__ import annotations

from traceprof.ranks.lateness import MORE_WORK, OUTSIDE, QUEUE, SLOWER, SLOWER_COMPUTE, UNEXPLAINED

BECAUSE: dict[str, str] = {
    SLOWER: "the same kernels take longer there",
    MORE_WORK: "it runs other or more kernels than the others",
    QUEUE: "its launch queue was full, so that the operation was launched late",
    "launch": "its host launched late: the GPU had nothing to do",
    "sync": "its host waited for the GPU before it launched more",
    "blocking copy": "it was busy with a copy, or its host waited for one",
    "data loading": "it waited for its data loader",
    "waiting": "its launching thread slept, or was in MPI",
    "host code": "its host ran other code before it launched more",
    "set-up": "it set something up, or allocated memory",
    "communication": "it spent the time in other communication",
    "other": "its GPU waited for something that had already been launched",
    SLOWER_COMPUTE: "its forward, backward or optimizer takes longer",
    OUTSIDE: "it spends the time outside the ranges of instrument: the trace does not show on what",
    UNEXPLAINED: "no single cause stands out",
}

ADVICE: dict[str, tuple[str, ...]] = {
    SLOWER: (
        ("Compare the clocks and temperatures of its GPU with those of the others (nvidia-smi -q"
         " -d CLOCK,PERFORMANCE,TEMPERATURE): power or thermal limits slow a GPU down"),
        "Look for another process on that GPU (nvidia-smi pmon)",
        "Run the job on another node, and see whether the straggler moves with it",
    ),
    MORE_WORK: (
        ("Balance the batches: sort or pack sequences by length, so that every rank gets as many"
         " tokens"),
        "Move what only one rank does (logging, checkpoints, evaluation) out of the step",
    ),
    QUEUE: (
        ("Launch the communication before the kernels that fill the queue, or from a thread of"
         " its own"),
        "Fewer, larger launches: CUDA graphs, torch.compile, fused optimizers",
    ),
    "launch": (
        ("Look at its host: other processes on the same cores (pin ranks to cores: torchrun"
         " --numa-binding, numactl), CPU frequency, garbage collection (gc.freeze())"),
        "Launch less: CUDA graphs or torch.compile take the host out of the step",
    ),
    "sync": (
        "Take .item(), .cpu() and prints of tensors out of the step on that rank, or do them late",
        "torch.cuda.set_sync_debug_mode('warn') names the lines",
    ),
    "blocking copy": (
        "Pin the memory (pin_memory=True) and copy with non_blocking=True",
        "Prefetch the next batch on a stream of its own",
    ),
    "data loading": (
        "More workers, or longer lives for them: num_workers, persistent_workers, prefetch_factor",
        "Check whether its node reads from a slower disk or a remote file system",
    ),
    "waiting": (
        "Look for what the thread waits for there: a lock, a file, another process or rank",
        "Record system calls, too: they show in which call the thread slept",
    ),
    "host code": (
        "Move what only one rank does (logging, checkpoints, evaluation) out of the step",
        ("Look at its host: other processes on the same cores (pin ranks to cores: torchrun"
         " --numa-binding, numactl), CPU frequency, garbage collection (gc.freeze())"),
    ),
    "set-up": (
        "Look at steps after the first ones: set-up happens only at first use",
        ("Keep memory that will be reused: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
         " (PYTORCH_HIP_ALLOC_CONF on ROCm)"),
    ),
    "communication": (
        "Look at its other communicators: the wait matrix shows the ranks that it waits for",
    ),
    "other": ("Look at what its GPU ran before the operation, on the timeline",),
    SLOWER_COMPUTE: (
        ("Look at its machine: other processes on the same cores (pin ranks to cores: torchrun"
         " --numa-binding, numactl), torch.get_num_threads(), CPU frequency"),
        "Balance the batches: sequences sorted or packed by length",
    ),
    OUTSIDE: (
        ("Name what the step does besides forward, backward and optimizer, with"
         " instrument.annotate('…') or data loading through a DataLoader, and record again"),
        "Move what only one rank does (logging, checkpoints, evaluation) out of the step",
    ),
    UNEXPLAINED: ("Look at the intervals of the evidence on the timeline",),
}  # fmt: skip
