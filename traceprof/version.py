"""The version of traceprof."""

__version__ = "0.1.0"
