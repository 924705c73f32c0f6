"""Tests of `traceprof.replay`."""
