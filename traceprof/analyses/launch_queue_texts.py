"""What a full launch queue means, and what to do about it, in words."""

from __future__ import annotations

from traceprof.findings import bullets

REEXPORT = "These stalls are inferred: CUPTI's own records were captured but not exported"
ADVICE = (
    (
        "Launch what other streams, GPUs or ranks wait for (a send, an all-gather) before the"
        " kernels that fill the queue, or from a thread of its own"
    ),
    (
        "Launch less: torch.compile (PyTorch 2.0, mode='reduce-overhead' for CUDA graphs),"
        " torch.cuda.graph (1.10) and fused or foreach optimizers (fused=True) replace hundreds of"
        " launches by a few"
    ),
    (
        "Shorten what holds the queue: where it is communication that waits for a peer, start"
        " the peer's part earlier or send in smaller pieces"
    ),
    (
        "Keep the host from running so far ahead: one torch.cuda.Event.synchronize() of the step"
        " before at the start of each step bounds the queue to two steps"
    ),
)
HEALTHY_ADVICE = (
    (
        "Nothing needs to be done while the GPU is busy: the host has run as far ahead as it can,"
        " and its next launch waits for the GPU, not the GPU for it"
    ),
    (
        "Read times of host ranges with care: in a range that launches, the host waited for the"
        " GPU; what held the queue is in `holder`"
    ),
    (
        "If other work waits for this thread (data loading, another GPU, a send), launch that"
        " first, or launch less: torch.compile, CUDA graphs (torch.cuda.graph), fused=True"
    ),
)


EXPLANATIONS: dict[str, str] = {
    "launch-queue-stall": f"""\
# launch-queue-stall

The host blocked in launches because the launch queue ("command buffer") was full.

The driver queues launches; when the queue has no room, the next launch blocks its thread until an
operation is over. As long as the GPU is busy that is healthy: the host cannot run further ahead. It
costs when the blocked thread also has to launch what another stream, GPU or rank waits for.

**Measured** by CUPTI's own records of a full command buffer (`source`: `overhead-records`), which
Nsight Systems exports from 2026.1 on. Without them (`inferred`), a stall is a launch that

* took longer than 50 µs and than 10 times the usual launch (the median of those made while the
  queue was less than half full),
* was made while the queue was at its limit. The limit is learned, for each stream (kernels, memory
  sets and copies within the device) and for the process: the greatest depth at which anything was
  launched, if at least 3 and most of the long launches at half that depth or more were made within
  1 % of it. 1022 per stream in the exports we have,
* returned within 100 µs of the end of an operation that made room, and while few others ended,
* and is neither a copy to or from pageable memory nor a call that waits for its own operation:
  those are `host-sync`.

Its stall is what it took beyond the usual launch. A launch is pending from its call's return until
its operation is over; operations whose launch was not captured were pending from the beginning.

* `stall_ns`, `num_stalls`: their sum and number; `blocked_ns`: the measure of their union.
* `max_queue_depth`: the most launches of the process that were pending; `queue_cap`, the limit at
  which launches blocked, and `queue_cap_scope`, whether of one `stream` or the whole `process`.
* `usual_launch_ns`: the usual launch.
* `num_late_launches`, `late_launch_ns`: operations that were launched late, and the sum of what
  they were late. Late is what started within 50 µs of its launch, on a stream that stood idle while
  the thread was blocked; what a thread lost before it waited for the GPU anyway does not count.
* `holder`, `holder_ns`: what the GPU ran longest while launches were blocked.
* `coverage`: the share of operations whose launch was captured.

**Impact** is the time in which a blocked thread kept something waiting: it launched late what
communicates, so that another GPU waited, or this GPU computed nothing meanwhile. It is a measure of
a union. An operation that also had to wait for an event may have been ready later than its stream
stood idle, which an export does not tell: for such, the impact is an upper bound.

With several GPUs in one process a stall is reported for the GPU that was launched for, and its
impact for the one that had to wait.

**Severity** follows the impact's share of the window: info from 1 %, low from 3 %, medium from
10 %, high from 25 %. Without impact, stalls of 1 % of the window or more are info.

**What to do** where it costs

{bullets(ADVICE)}

and where it does not

{bullets(HEALTHY_ADVICE)}
""",
}
