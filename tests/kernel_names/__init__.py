"""Tests of `traceprof.kernel_names`."""
