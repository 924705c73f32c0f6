"""Communication of a rank: messages, NCCL queues, latency, exposure."""
