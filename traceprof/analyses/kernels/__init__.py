"""Kernels by signature: their times, alone and beside communication."""
