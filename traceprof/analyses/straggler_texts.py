"""What a straggler's causes mean and what to do about them."""

from __future__ import annotations

from traceprof.ranks.causes import MORE_WORK, OUTSIDE, QUEUE, SLOWER, SLOWER_COMPUTE, UNEXPLAINED

BECAUSE: dict[str, str] = {
    SLOWER: "the same kernels take longer there",
    MORE_WORK: "it runs other or more kernels than the others",
    QUEUE: "its launch queue was full, so that the operation was launched late",
    "launch": "its host launched late: the GPU had nothing to do",
    "sync": "its host waited for the GPU before it launched more",
    "blocking copy": "it was busy with a copy, or its host waited for one",
    "data loading": "it waited for its data loader",
    "communication": "it spent the time in other communication",
    "other": "its GPU waited for something that was launched already",
    SLOWER_COMPUTE: "its forward, backward or optimizer takes longer",
    OUTSIDE: "it spends the time in no range of instrument: the trace does not say on what",
    UNEXPLAINED: "no single cause stands out",
}

ADVICE: dict[str, tuple[str, ...]] = {
    SLOWER: (
        (
            "Compare the clocks and temperatures of its GPU with those of the others (nvidia-smi"
            " -q -d CLOCK,PERFORMANCE,TEMPERATURE): power or thermal limits slow a GPU down"
        ),
        "Look for another process on that GPU (nvidia-smi pmon)",
        "Give the job another node, and see whether the straggler moves with it",
    ),
    MORE_WORK: (
        (
            "Balance the batches: sort or pack sequences by length, so that every rank gets as many"
            " tokens"
        ),
        "Move what only one rank does (logging, checkpoints, evaluation) out of the step",
    ),
    QUEUE: (
        (
            "Launch the communication before the kernels that fill the queue, or from a thread of"
            " its own"
        ),
        "Fewer, larger launches: CUDA graphs, torch.compile, fused optimizers",
    ),
    "launch": (
        (
            "Look at its host: other processes on the same cores (pin ranks to cores: torchrun"
            " --numa-binding, numactl), CPU frequency, garbage collection (gc.freeze())"
        ),
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
        "More or longer-living workers: num_workers, persistent_workers=True, prefetch_factor",
        "See whether its node reads from a slower disk or a remote file system",
    ),
    "communication": (
        "Look at its other communicators: the wait matrix of the ranks tells whom it waits for",
    ),
    "other": ("Look at what its GPU ran before the operation, on the timeline",),
    SLOWER_COMPUTE: (
        (
            "Look at its machine: other processes on the same cores (pin ranks to cores: torchrun"
            " --numa-binding, numactl), torch.get_num_threads(), CPU frequency"
        ),
        "Balance the batches: sequences sorted or packed by length",
    ),
    OUTSIDE: (
        (
            "Name what the step does besides forward, backward and optimizer, with"
            " instrument.annotate('…') or data loading through a DataLoader, and record again"
        ),
        "Move what only one rank does (logging, checkpoints, evaluation) out of the step",
    ),
    UNEXPLAINED: ("Look at the intervals of the evidence on the timeline",),
}

EXPLANATIONS: dict[str, str] = {
    "straggler": """\
# straggler

One rank comes last to the collectives again and again: all others wait for it, whatever their own
speed.

**Measured** on one clock. Reports of one machine share its clock. The clocks of several machines
are brought together by the operations that all members leave together (all-reduce, all-gather,
reduce-scatter, all-to-all): how far their ends are apart is how far the clocks are, but for some
microseconds. A robust line through these differences gives offset and drift; how far they stray
from it is the uncertainty. A machine that shares no operation keeps UTC, which NTP keeps to tens
of milliseconds. Nothing is claimed below the uncertainty.

Ranks without a GPU are compared by the ranges of `instrument`: a rank arrives when it calls an
operation, and leaves when it is over. Their threads are woken some 50 microseconds apart, now and
then milliseconds; but none leaves before the last one has come, which bounds their clocks.

Operations are matched across ranks by the labels of `instrument`, by NCCL's communicator and their
order in it, or by their order alone; kind, size and residence are checked.

A rank is late to an operation if it starts later than the median of the other members by more than
the uncertainty, and last if nobody came certainly later. It is a straggler if it is last in half of
the operations at least, and more often than chance explains.

* `rank`: the root. A rank that was late because it waited for another one itself is not the root.
* `lateness_ns`: how much later than the median of the others it came, at the median.
* `share_last`: the share of the operations in which it (or the rank it holds up) came last.
* `clock_uncertainty_ns`: how well its clock compares with the others'; null where it does not.
* `cause`: what took the time, since the ranks last stood together: the late rank's computing,
  communicating, copying and idling by cause, each beyond the median of the others. What makes up
  half of the lateness is the cause. Without a GPU: data loading, slower compute (forward, backward,
  optimizer), communication, or outside the ranges, of which the trace does not say more.

**Impact** is how long the others waited for it with nothing to compute, at their median.

**Severity** follows its share of the window: info from 1 %, low from 3 %, medium from 10 %, high
from 25 %.

**What to do** depends on the cause: slower kernels (clocks, temperature, another process), more
work (imbalanced batches), a full launch queue, a starved host, synchronization, blocking copies,
data loading.
""",
}
