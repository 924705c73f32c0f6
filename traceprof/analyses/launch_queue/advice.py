"""Advice on a full launch queue."""

from __future__ import annotations

REEXPORT = "These stalls are inferred: CUPTI's own records were captured but not exported"
ADVICE = (
    ("Launch what other streams, GPUs or ranks wait for (a send, an all-gather) before the"
     " kernels that fill the queue, or from a thread of its own"),
    ("Launch less: torch.compile (PyTorch 2.0, mode='reduce-overhead' for CUDA graphs),"
     " torch.cuda.graph (1.10) and fused or foreach optimizers (fused=True) replace hundreds of"
     " launches by a few"),
    ("Shorten what holds the queue: if it is communication that waits for a peer, start the"
     " peer's part earlier or send in smaller pieces"),
    ("Keep the host from running so far ahead: one"
     " torch.cuda.Event.synchronize() of the previous step at the start of"
     " each step limits the queue to two steps"),
)  # fmt: skip
HEALTHY_ADVICE = (
    ("Nothing needs to be done while the GPU is busy: the host has run as far ahead as it can;"
     " its next launch waits for the GPU, and the GPU does not wait for it"),
    ("Read times of host ranges with care: in a range that launches, the host waited for the GPU;"
     " what held the queue is in `holder`"),
    ("If other work waits for this thread (data loading, another GPU, a send), launch that first,"
     " or launch less: torch.compile, CUDA graphs (torch.cuda.graph), fused=True"),
)  # fmt: skip
