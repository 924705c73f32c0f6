"""What `process-group-scaling` means, how it is measured, and what to do."""

from __future__ import annotations

from traceprof.communication.latency import SMALL_BYTES
from traceprof.findings import bullets
from traceprof.units import size_text

# Medians of fewer differ by a fifth on a machine that does something else, too.
MANY = 50
MIN_GROWTH = 1.2

ADVICE = (
    (
        "Give each process one compute thread: OMP_NUM_THREADS=1, or torch.set_num_threads(1);"
        " torchrun sets it, torch.multiprocessing.spawn does not"
    ),
    (
        "Give each rank cores of its own, its group's threads included: taskset or numactl"
        " --physcpubind"
    ),
    (
        "Send fewer, larger messages, since the cost is per operation: flatten small tensors into"
        " one (torch._utils._flatten_dense_tensors), or torch.distributed._coalescing_manager"
    ),
    "Start operations with async_op=True, compute meanwhile, and wait for them late",
    "Run fewer processes on the machine, each with more work",
    (
        "On one machine let Gloo use the loopback device, GLOO_SOCKET_IFNAME=lo, and connect only"
        " ranks that talk to each other, TORCH_GLOO_LAZY_INIT=1"
    ),
    (
        "Where small messages must stay: a backend over shared memory (MPI, UCC), or NCCL where"
        " there are GPUs"
    ),
)
EXPLANATION = f"""\
# process-group-scaling

Small operations cost more the more process groups of one machine communicate at once. Each group of
Gloo has threads of its own; an operation is a chain of short turns on sockets, and each turn waits
for a core.

**Measured** on ranks without a GPU, from the ranges of `instrument`, for each machine. Small are
barriers, and operations whose message has at most {size_text(SMALL_BYTES)}: they all take as long
as the smallest. An operation lasts from its call until it is over. How many groups communicate at
once during an operation is their average over its duration, rounded; a group communicates while any
of its ranks does. Only operations of the same kind, size and number of ranks are compared, where at
least {MANY} of them ran with each number of groups. Reports of one machine are put on one clock by
the starts of their sessions, so that runs with one, two and four groups can be given together.

* `num_groups`: the most groups at once.
* `us_per_operation`: the median duration then, in µs.
* `growth`: how many times as long operations take with the most groups as with the fewest: the sums
  of the medians of all kinds, each weighted with its operations.
* `least_groups`, `us_per_operation_at_least`: the fewest groups at once, and the median then.
* `num_operations`, `operations_per_group`: small operations; of a group, the median.
* `num_processes`, `num_threads`, `num_cores`: ranks that communicated on the machine when the rank
  that loses most did, the threads of their processes that Nsight saw, and the machine's logical
  processors; null where the export does not tell.
* `coverage`: the share of small operations that could be compared.

**Impact** is that of the rank that loses most: the time in its compared operations with more groups
than the fewest, as far as it computes nothing meanwhile, times the share by which their medians are
longer.

**Severity** follows its share of the window: info from 1 %, low from 3 %, medium from 10 %, high
from 25 %. A growth below {MIN_GROWTH} is not reported.

**What to do**

{bullets(ADVICE)}
"""
