"""What wrappers are made with.

In come PyTorch's functions and how to read their arguments; out come functions that do the same
within an NVTX range, and a way to put the originals back. Nothing here knows a wrapper.
"""
