"""The dashboard: draws what traceprof computed, and computes nothing of its own."""
