"""NVTX events of an Nsight export: ranges, marks, names and labels."""
