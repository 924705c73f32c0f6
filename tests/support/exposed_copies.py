"""What the analysis of exposed copies says, in the words of its reference."""

from tests.reference.exposed_copy import KINDS, ExposedCopy
from traceprof.analyses.exposed_copy import ExposedCopyResult
from traceprof.analyses.exposed_copy.parts import exposed_ns
from traceprof.trace.model.kinds import MemoryKind


def answer(result: ExposedCopyResult) -> ExposedCopy:
    """Return what the analysis says, in the reference's words."""
    metrics, parts = result.metrics, result.parts
    gradients = [part for part in result.parts if part.is_gradient]
    return ExposedCopy(
        window_ns=result.window_ns,
        copy_ns=result.copy_ns,
        exposed_ns=metrics.exposed_ns,
        by_kind={kind: getattr(metrics, f"{kind}_ns") for kind in KINDS},
        pageable_ns=exposed_ns(part for part in parts if part.memory is MemoryKind.PAGEABLE),
        same_stream_ns=metrics.same_stream_ns,
        bytes=metrics.bytes,
        num_copies=metrics.num_copies,
        gradient_ns=metrics.gradient_ns,
        gradient_bytes=sum(part.bytes for part in gradients),
        num_gradient_copies=sum(part.num_copies for part in gradients),
    )
