"""Reads the SQLite exports of Nsight Systems."""

NSYS_REP = b"NVIDIA Tegra Profiler Report"
"""The beginning of a .nsys-rep."""
