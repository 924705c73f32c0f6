"""What the analysis of waiting communication says, in the words of its reference."""

from collections.abc import Iterable

from traceprof.analyses.nccl_serialization import SerializationResult


def measured_numbers(result: SerializationResult, names: Iterable[str]) -> dict[str, int]:
    """Return these numbers of the result and its metrics by name, 0 for unknown ones."""
    declared = result.metrics.declared()
    return {
        name: getattr(result.metrics if name in declared else result, name) or 0 for name in names
    }
