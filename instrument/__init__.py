"""Runs inside the training process: names what it does, for Nsight Systems to record.

Every range goes to the NVTX domain `traceprof`, in the grammar of `traceprof.labels`, which
`traceprof analyze` reads. Without the package nvtx, or without Nsight attached, nothing happens.
"""

from instrument.switch import disable, enable, is_enabled
from instrument.training import annotate, step

__all__ = ["annotate", "disable", "enable", "is_enabled", "step"]
