"""What `exposed-communication` means, how it is measured, and what to do."""

from __future__ import annotations

from traceprof.findings import bullets

_SMALLER_BUCKETS = (
    "DDP: give all-reduces more compute to hide behind with smaller buckets (bucket_cap_mb),"
    " static_graph=True where the graph does not change, and no_sync() on all but the last"
    " micro-batch when accumulating gradients"
)
_HALF_THE_BYTES = (
    "Send half the bytes: torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
    ".bf16_compress_hook"
)
ADVICE = (
    (
        "Look at the slowest ranks first: a collective's kernel runs until the last rank arrives,"
        " so exposed time may be waiting for a straggler; record every rank and compare"
    ),
    _SMALLER_BUCKETS,
    _HALF_THE_BYTES,
    "FSDP2: prefetch with set_modules_to_forward_prefetch and set_modules_to_backward_prefetch",
)
HOST_ADVICE = (
    (
        "Look at the slowest ranks first: a collective is over when the last rank has come, so"
        " exposed time may be waiting for a straggler; record every rank and compare"
    ),
    "Start operations with async_op=True, compute meanwhile, and wait for them late",
    _SMALLER_BUCKETS,
    _HALF_THE_BYTES,
)
EXPLANATION = f"""\
# exposed-communication

Communication that no compute hides: the GPU communicates, and no other kernel runs.

**Measured** as communication − compute, both unions over all streams of the rank. Communication is
every kernel of NCCL, RCCL, NVSHMEM, DeepEP, symmetric memory and custom all-reduces (by name), and
every copy from one GPU to another. A collective's kernel runs until the last rank arrives, so
exposed time holds waiting for slower ranks as well as transfer. Nothing but the operation is read
from a kernel's name: NCCL's names print `RING_LL` whatever algorithm and protocol ran.

* `exposed_ns`: its length. It is also the impact: what perfect overlap would save at most.
* `fraction`: the exposed share of the communication.
* `overlap_efficiency`: (compute + communication − either) ÷ min(compute, communication); 1 where
  everything that can overlap does.
* `per_step_ns`: exposed time of the median training step, null where no step was found.
* `coverage`: the share of GPU operations whose kind is known; a CUDA graph traced as a whole may
  hide communication (record with `--cuda-graph-trace=node`).

**A rank without a GPU** is measured by the ranges of `instrument` on its host. Compute is the time
in which a thread is in `forward`, `backward` or `optimizer step` and does not wait for
communication. Communication is the time in which a thread is in a communication call (or in a
`wait`), or an operation is in flight (from its call to its completion, where the backend tells it,
as Gloo does). So a synchronous call is exposed, unless another thread computes meanwhile, and an
asynchronous one is hidden as far as the threads compute while it is in flight.
DistributedDataParallel waits for its buckets at the end of `backward` in C++, where no range can
show it: from the moment when the last bucket is ready, whatever is in flight counts as waited for.
What a backward computes after that, outside of DistributedDataParallel, is mistaken for waiting;
where the backend does not tell when an operation is done, that wait is mistaken for compute. Idle
is what no range tells of, such as loading data, or a loss computed outside of `forward`. There,
`coverage` is 1: it is about CUDA graphs.

**Severity** follows the share of the window: info from 1 %, low from 3 %, medium from 10 %, high
from 25 %.

**What to do**

{bullets(ADVICE)}

On ranks without a GPU:

{bullets(HOST_ADVICE)}
"""
