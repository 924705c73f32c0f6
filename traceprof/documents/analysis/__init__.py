"""The document of an analysis, `traceprof.analysis/1`: its types and how it is built."""
