"""Tests of `traceprof.host`."""
