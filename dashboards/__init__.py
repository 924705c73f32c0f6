"""The dashboard: draws what traceprof measured, and sums up only what one view shows."""
