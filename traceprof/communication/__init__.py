"""What was communicated: messages, NCCL queues, latency."""
