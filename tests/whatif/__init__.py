"""Tests of `traceprof.whatif`."""
