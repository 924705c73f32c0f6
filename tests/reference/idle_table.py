"""Print why the GPUs of real exports idle: ``python -m tests.reference.idle_table REPORT...``.

Of each rank: its window, idle time and the causes' shares of it in percent, the same in its
training, and with ``--details`` what it slept in, what it ran, and which calls took most.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.reference.breakdown import LOW_24_BITS
from tests.reference.host_evidence import Evidence
from tests.reference.idle_causes import CAUSES, IdleCauses, RankIdle
from tests.reference.nsight_export import export_of
from tests.reference.spans import clipped, length, union
from tests.reference.training import training


def lines(path: Path, *, details: bool) -> Iterator[str]:
    export = export_of(path)
    evidence = Evidence(export)
    for process, device in sorted(export.ranks):
        rank = RankIdle(export, evidence, process, device)
        low, high = rank.span()
        whole, part = rank.answer(), training(export, process, device)
        name = f"{path.parent.name[:9]}/{path.stem[:30]} {(process >> 24) & LOW_24_BITS}:{device}"
        yield f"{name:53} {(high - low) / 1e6:9.1f} {_shares(whole)}"
        inside = rank.answer((part.start, part.end))
        basis = f"training, {part.basis} ({len(part.steps)})"
        yield (
            f"  {basis:31} {part.before_ns / 1e6:9.1f} {part.after_ns / 1e6:9.1f}"
            f" {(part.end - part.start) / 1e6:9.1f} {_shares(inside)}"
        )
        if details:
            yield from _details(rank, whole)


def _shares(result: IdleCauses) -> str:
    shares = (100 * result.causes[cause] / max(result.idle_ns, 1) for cause in CAUSES)
    return f"{result.idle_ns / 1e6:9.2f} " + " ".join(f"{share:6.1f}" for share in shares)


def _details(rank: RankIdle, result: IdleCauses) -> Iterator[str]:
    for cause in CAUSES:
        slept, ran, called = Counter[str](), Counter[str](), Counter[str]()
        for thread in {piece.threads[0] for piece in result.pieces if piece.threads}:
            spans = union(
                (piece.start, piece.end)
                for piece in result.pieces
                if piece.cause == cause and piece.threads[:1] == (thread,)
            )
            slept.update(rank.evidence.slept_in(thread, spans))
            ran.update(rank.evidence.functions(thread, spans))
            for call in rank.calls:
                if call.thread == thread:
                    called[call.name] += length(clipped(spans, call.start, call.end))
        for title, counts in (("calls", +called), ("slept in", slept), ("ran", ran)):
            if result.causes[cause] and counts:
                yield f"    {cause:16} {title}: {counts.most_common(4)}"


if __name__ == "__main__":
    heads = " ".join(cause.removesuffix("_ns").replace("_", " ")[:6].rjust(6) for cause in CAUSES)
    sys.stdout.write(f"{'':53} {'window':>9} {'idle ms':>9} {heads} (% of idle)\n")
    for argument in sys.argv[1:]:
        if not argument.startswith("--"):
            for line in lines(Path(argument), details="--details" in sys.argv):
                sys.stdout.write(f"{line}\n")
