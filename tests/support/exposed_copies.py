"""What the analysis of exposed copies says, in the words of its reference."""

from tests.reference.exposed_copy import KINDS, ExposedCopy
from traceprof.analyses.exposed_copy import ExposedCopyResult
from traceprof.analyses.exposed_copy.parts import exposed_ns
from traceprof.trace.model.kinds import MemoryKind


def answer(result: ExposedCopyResult) -> ExposedCopy:
    """Return what the analysis says, in the reference's words."""
    parts, gradients = result.parts, [part for part in result.parts if part.is_gradient]
    return ExposedCopy(
        window_ns=result.window_ns,
        copy_ns=result.copy_ns,
        exposed_ns=result.exposed_ns,
        by_kind={
            kind: exposed_ns(part for part in parts if part.direction == kind) for kind in KINDS
        },
        pageable_ns=exposed_ns(part for part in parts if part.memory is MemoryKind.PAGEABLE),
        same_stream_ns=exposed_ns(part for part in parts if part.is_same_stream),
        bytes=sum(part.bytes for part in parts),
        num_copies=sum(part.num_copies for part in parts),
        gradient_ns=exposed_ns(gradients),
        gradient_bytes=sum(part.bytes for part in gradients),
        num_gradient_copies=sum(part.num_copies for part in gradients),
    )
