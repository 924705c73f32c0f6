"""Bubbles of the stages of a pipeline, as an analysis finds them."""

from typing import Any

from traceprof.analyses import pipeline_bubble
from traceprof.analysis import Analysis


def bubbles(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the metrics of the stages of the first pipeline, in order; none without one."""
    stages = pipeline_bubble.run(analysis.result.measured)
    return [metrics.by_name() for metrics in stages.metrics[0]] if stages.metrics else []
