"""Tools for wrappers: ranges, labels, patches and waits.

From PyTorch's functions and descriptions of their arguments come functions that do the same within
an NVTX range, and a way to restore the originals. Nothing here depends on a single wrapper.
"""
