"""Kinds of rows of the timeline."""

COMPUTE, COMMUNICATION, COPY, HOST, NVTX, MARKS, STEPS, COUNTER, OPERATORS, STALLS = (
    "compute", "communication", "copy", "host", "nvtx", "marks", "step", "counter", "operators",
    "stalls",
)  # fmt: skip
"""The content of a row, which determines its colour."""

GPU_KINDS = (COMPUTE, COMMUNICATION, COPY)
