"""Findings about links at their limit, or far below it while work waits, for all sources.

Copies give the link's rate by their bytes and times, sampled counters by the traffic. Peaks,
thresholds and advice are the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from traceprof import findings as f
from traceprof.analyses.remedies import FEWER_REDUCTIONS, HALF_THE_BYTES, MERGE, PREFETCH
from traceprof.analyses.results import CostResult, facts_of
from traceprof.intervals import Intervals
from traceprof.run.rank import Rank, Window
from traceprof.units import duration, percent


class LinkMetrics(f.Metrics, kw_only=True):
    """Numbers of `link-saturated` and `link-underused`."""

    link: Annotated[str, f.one_of("nvlink", "pcie", "network"), "the link"]
    direction: Annotated[
        str,
        f.one_of("h2d", "d2h", "d2d", "p2p", "tx", "rx"),
        "the direction: `h2d` or `d2h` for copies; `tx` or `rx` for counters"
        " (the GPU, or the NIC `nic`, sends or receives)",
    ]
    peer: Annotated[int | None, "null: these links are shared by all peers"]
    gb_per_s: Annotated[f.Number, "the measured rate (1 GB = 1e9 bytes)"]
    peak_gb_per_s: Annotated[f.Positive, "the peak rate in one direction"]
    utilization: Annotated[f.Number, "the measured rate as a share of the peak"]
    source: Annotated[
        str,
        f.one_of("copies", "gpu-metrics", "nic-metrics"),
        "`copies` (bytes and times of memory copies), `gpu-metrics` (percent of the peak, sampled;"
        " of PCIe with the packets' headers) or `nic-metrics` (rates, sampled)",
    ]
    is_peak_assumed: Annotated[
        bool,
        "true if the peak was assumed by the name of the GPU's board: an export shows neither PCIe"
        " generation and width nor bridges. A rate that the user gives takes its place",
    ]
    exposed_ns: Annotated[
        f.Ns, "how long the copies or the communication had the GPU to themselves: the impact"
    ]
    nic: Annotated[str | None, "the name of the NIC, for `network`"] = None
    bytes: Annotated[f.Count | None, "bytes of the copies"] = None
    busy_ns: Annotated[f.Ns | None, "the time in which at least one of the copies ran"] = None
    num_copies: Annotated[f.Count | None, "the number of copies"] = None
    num_samples: Annotated[f.Count | None, "the number of samples of the counter"] = None
    coverage: Annotated[
        f.Fraction,
        "for copies, the share of those in this direction that could be judged;"
        " for counters, the share of the exposed time covered by whole samples."
        " Below five samples nothing is claimed",
    ]


FINDINGS = dict.fromkeys(
    ("link-saturated", "link-underused"), f.FindingKind(LinkMetrics, needs=f.Sight.OPERATIONS)
)
SATURATED = 0.85
"""Nobody gets much more: packet headers take 10 to 18 % of PCIe's peak, and 8 to 16 % of NVLink's
(copy engines reach 380 of 450 GB/s on an H100, 396 on an H200)."""
UNDERUSED = 0.40
"""Half of what healthy links carry: 75 to 90 % of the peak for large transfers."""
WAYS = {"h2d": "from the host", "d2h": "to the host", "tx": "sent", "rx": "received"}
NAMES = {"nvlink": "NVLink", "pcie": "PCIe", "network": "The network"}


class Load(CostResult, frozen=True):
    """The rate of a link while work waited for it."""

    metrics: LinkMetrics  # the numbers of its findings
    what: str  # what was waited for: `copies` or `communication`

    @classmethod
    def of(
        cls, rank: Rank, window: Window, waited: Intervals, what: str, metrics: LinkMetrics
    ) -> Load:
        """Return the rate while a rank waited, with the longest waits and what ran in them."""
        facts, evidence = facts_of(rank, window, waited), longest(rank, waited, what)
        return cls(**facts, metrics=metrics, what=what, evidence=evidence)


def saturated(load: Load) -> list[f.Finding | f.NotApplicable]:
    """Return a finding if the link is at its limit while work waits for it."""
    metrics = load.metrics
    if metrics.utilization < SATURATED:
        return []
    state = f"is at its limit: {_rate(metrics)}"
    return _claims("link-saturated", load, state, SATURATED_ADVICE[metrics.link])


def underused(load: Load, more_advice: Sequence[str] = ()) -> list[f.Finding | f.NotApplicable]:
    """Return a finding if the link is far below its peak while work waits for it."""
    metrics = load.metrics
    if metrics.utilization >= UNDERUSED:
        return []
    advice = UNDERUSED_ADVICE["copies" if load.what == "copies" else metrics.link]
    state = f"carries only {_rate(metrics)}"
    return _claims("link-underused", load, state, advice, more_advice)


def longest(rank: Rank, exposed: Intervals, fallback: str) -> tuple[f.Evidence, ...]:
    """Return the longest intervals, each with the name of what ran."""
    return tuple(
        f.Evidence(start, end, rank.name_at(start) or fallback)
        for start, end in exposed.longest(f.MAX_EVIDENCE)
    )


def _claims(
    id_: str, load: Load, state: str, advice: Sequence[str], more_advice: Sequence[str] = ()
) -> list[f.Finding | f.NotApplicable]:
    metrics = load.metrics
    name = f" ({metrics.nic})" if metrics.nic else ""
    title = (
        f"{NAMES[metrics.link]}{name} {state}; {duration(metrics.exposed_ns)} of {load.what} is not"
        " hidden"
    )
    lines = (*advice, *((ASSUMED_ADVICE,) if metrics.is_peak_assumed else ()), *more_advice)
    return load.finding(id_, title, metrics.exposed_ns, metrics, lines)


def _rate(metrics: LinkMetrics) -> str:
    assumed = "assumed " if metrics.is_peak_assumed else ""
    return (
        f"{metrics.gb_per_s:.1f} GB/s {WAYS[metrics.direction]}, {percent(metrics.utilization)} of"
        f" the {assumed}peak of {metrics.peak_gb_per_s:g} GB/s"
    )


ASSUMED_ADVICE = (
    "The peak is assumed from the name of the board, with x16 and all its NVLinks: check"
    " `nvidia-smi -q -d PCIE` (generation and width under load), `nvidia-smi nvlink --status` and"
    " `nvidia-smi topo -m`, and give the real rate if it differs"
)
SATURATED_ADVICE = {
    "pcie": (
        (
            "Move fewer bytes over PCIe: keep what is needed again on the GPU, copy uint8 or bf16"
            " and convert there, decode and augment on the GPU (NVIDIA DALI)"
        ),
        PREFETCH,
        (
            "If gradients or activations also cross PCIe: put ranks that communicate most on GPUs"
            " with NVLink between them (`nvidia-smi topo -m`)"
        ),
    ),
    "nvlink": (HALF_THE_BYTES, FEWER_REDUCTIONS),
    "network": (HALF_THE_BYTES, FEWER_REDUCTIONS),
}
_RANKS_FIRST = (
    "Compare the ranks first: a collective's kernel runs until the last rank arrives, and while it"
    " waits nothing crosses the link (see the findings on stragglers)"
)
UNDERUSED_ADVICE = {
    "copies": (
        (
            "Check the slot while copies run: `nvidia-smi"
            " --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv`; a riser or a"
            " shared switch can halve it"
        ),
        (
            "Bind each process to the GPU's own NUMA node before it allocates pinned memory"
            " (`numactl --cpunodebind=N --membind=N`, `nvidia-smi topo -m` says which)"
        ),
        (
            "Do not let the GPUs of one switch or socket copy at the same moment: stagger them, or"
            " compare with nvbandwidth alone and all together"
        ),
    ),
    "nvlink": (
        _RANKS_FIRST,
        MERGE,
        (
            "Check with nccl-tests and NCCL_DEBUG=INFO that NCCL takes NVLink (P2P/CUMEM or"
            " P2P/IPC, not SHM or NET): NCCL_P2P_DISABLE unset, NCCL_P2P_LEVEL=NVL or higher"
        ),
        (
            "Large operations at a low rate: more CTAs (NCCL_MIN_CTAS, NCCL 2.17 and later, or"
            " ProcessGroupNCCL.Options().config.min_ctas), if compute can spare the SMs"
        ),
    ),
    "pcie": (_RANKS_FIRST,),
    "network": (_RANKS_FIRST,),
}


def _bullets(advice: Mapping[str, tuple[str, ...]]) -> str:
    # The links share some advice: each line once.
    lines = dict.fromkeys(line for lines in advice.values() for line in lines)
    return "\n".join(f"* {line}" for line in lines)


PAGE = {
    "saturated": f"{SATURATED * 100:.0f} %",
    "underused": f"{UNDERUSED * 100:.0f} %",
    "saturated_advice": _bullets(SATURATED_ADVICE),
    "underused_advice": _bullets(UNDERUSED_ADVICE),
}
