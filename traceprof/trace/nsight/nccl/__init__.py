"""NCCL in an Nsight export: its NVTX ranges, their payloads, and the communication calls."""
