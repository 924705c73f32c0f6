"""Kernels by signature: what they took, alone and beside communication."""
