"""How far simulated runs of many ranks are understood: clocks, lateness, causes, false alarms.

    python benchmarks/ranks.py [--seeds N]

Each seed is a run of eight ranks on four machines, whose clocks are up to 20 ms and 50 millionths
off, whose members leave operations up to 20 µs apart and, one in fifty, far apart, and whose
captures are cut at both ends. Every scenario is tried with labels and without, in turn; half of the
runs have a report for each rank. Ranks without a GPU always have labels, and leave operations up to
60 µs apart and, one in twenty, up to 1 ms.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import click
import numpy as np

from sample_traces.simulator import RUN_SCENARIOS, simulate_run
from traceprof.analysis import analyze


class Tally:
    """What was measured so far."""

    def __init__(self, *, has_gpu: bool) -> None:
        self.has_gpu = has_gpu
        self.scenarios = [
            name for name, scenario in RUN_SCENARIOS.items() if scenario.has_gpu == has_gpu
        ]
        self.offset_errors: list[float] = []
        self.uncertainties: list[int] = []
        self.lateness_errors: list[float] = []
        self.verdicts: dict[str, Counter[str]] = {name: Counter() for name in self.scenarios}
        self.num_false = 0
        self.num_unmatched = 0

    def add(self, name: str, seed: int) -> None:
        """Simulate and analyse one run."""
        with tempfile.TemporaryDirectory() as folder:
            truth_path = simulate_run(
                name,
                Path(folder),
                seed=seed,
                per_rank=seed % 2 == 1,
                is_labelled=seed % 4 < 2 or not self.has_gpu,
            )
            truth = json.loads(truth_path.read_text())
            reports = [Path(folder) / entry["file"] for entry in truth["reports"]]
            analysis = analyze(*reports)
            analysis.close()
        self.num_unmatched += bool(analysis.ranks.unmatched)
        for report, entry in enumerate(truth["reports"]):
            clock = analysis.ranks.clocks.of(report)
            if clock.source == "reference":
                continue
            estimate = clock.offset_ns + (entry["at_ns"] - clock.at_ns) * clock.drift
            self.offset_errors.append(abs(estimate - entry["offset_ns"]))
            self.uncertainties.append(clock.uncertainty_ns or 0)
        planted = truth["straggler"]
        found_ranks = [finding for finding in analysis.findings if finding.id == "straggler"]
        wrong = [rank for rank in found_ranks if not planted or rank.rank != planted["rank"]]
        self.num_false += len(wrong)
        right = [rank for rank in found_ranks if planted and rank.rank == planted["rank"]]
        if not planted:
            self.verdicts[name]["silent" if not wrong else "false alarm"] += 1
        elif not right:
            self.verdicts[name]["missed"] += 1
        else:
            metrics = right[0].metrics
            self.verdicts[name][
                "found" if metrics["cause"] == planted["cause"] else f"cause {metrics['cause']}"
            ] += 1
            late = metrics["lateness_ns"]
            assert isinstance(late, int)  # noqa: S101  (so the schema says)
            self.lateness_errors.append(abs(late - planted["lateness_ns"]))

    def print(self) -> None:
        """Write the results down."""
        offset, unsure = np.array(self.offset_errors), np.array(self.uncertainties)
        late = np.array(self.lateness_errors)
        print(f"with{'' if self.has_gpu else 'out'} GPUs: clocks of other machines: {len(offset)}")
        print(
            f"  offset error: median {np.median(offset) / 1e3:.2f} µs,"
            f" 95 % {np.quantile(offset, 0.95) / 1e3:.2f} µs, worst {offset.max() / 1e3:.2f} µs"
        )
        print(
            f"  stated uncertainty: median {np.median(unsure) / 1e3:.1f} µs;"
            f" the error is within it in {(offset <= unsure).mean():.1%}"
        )
        print(
            f"lateness of planted stragglers: {len(late)}; error: median"
            f" {np.median(late) / 1e3:.1f} µs, 95 % {np.quantile(late, 0.95) / 1e3:.1f} µs,"
            f" worst {late.max() / 1e3:.1f} µs"
        )
        print(
            f"false alarms: {self.num_false}; runs with operations unmatched: {self.num_unmatched}"
        )
        for name, verdicts in self.verdicts.items():
            print(f"  {name:24} {dict(verdicts)}")


@click.command()
@click.option("--seeds", default=100, show_default=True, help="Of each scenario.")
def main(seeds: int) -> None:
    """Measure the analysis of simulated runs."""
    for has_gpu in (True, False):
        tally = Tally(has_gpu=has_gpu)
        for seed in range(seeds):
            for name in tally.scenarios:
                tally.add(name, seed)
        tally.print()


if __name__ == "__main__":
    main()
