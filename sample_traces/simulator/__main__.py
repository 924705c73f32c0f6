"""`python -m sample_traces.simulator NAME -o FILE`: writes a report with known answers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from sample_traces.simulator.ddp import simulate_ddp
from sample_traces.simulator.gloo import simulate_gloo
from sample_traces.simulator.kineto_writer import write_traces
from sample_traces.simulator.scenarios import SCENARIOS, SCHEMA_VERSIONS, simulate_scenario
from sample_traces.simulator.scenarios.runs import RUN_SCENARIOS, simulate_run

SUMMARIES = {
    "ddp": "Data-parallel training of any size.",
    "gloo": "Pairs of ranks without a GPU, more and more at once.",
    **{name: scenario.summary for name, scenario in (SCENARIOS | RUN_SCENARIOS).items()},
}
"""What can be simulated: by name, what it is."""
_LIST = "\n\n\b\n" + "\n".join(f"{name:30} {text}" for name, text in SUMMARIES.items())
_ARGUMENTS = {"ddp": ("gpus", "steps", "kernels_per_step"), "gloo": ("pairs", "operations")}


@click.command(help=f"Write a report, with its answers beside it. {_LIST}")
@click.argument("name", type=click.Choice([*SUMMARIES]), metavar="NAME")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The export to write; X.json or X.json.gz becomes a trace of torch.profiler for each"
    " process. Of runs on several machines: the folder of their reports.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of all that varies.")
@click.option(
    "--schema-version",
    type=click.Choice(SCHEMA_VERSIONS),
    default=SCHEMA_VERSIONS[-1],
    show_default=True,
    help="Of exports of scenarios and of several machines.",
)
@click.option("--per-rank", is_flag=True, help="Of several machines: a report for each rank.")
@click.option("--labels/--no-labels", default=True, help="The same: was instrument enabled?")
@click.option("--gpus", default=2, show_default=True, help="Of ddp: ranks, one to a GPU.")
@click.option("--steps", default=5, show_default=True, help="Of ddp: training steps.")
@click.option(
    "--kernels-per-step", default=40, show_default=True, help="Of ddp: of each rank, with NCCL's."
)
@click.option("--pairs", default=4, show_default=True, help="Of gloo: pairs, and steps.")
@click.option(
    "--operations", default=30, show_default=True, help="Of gloo: small all-reduces of each pair."
)
def command(
    name: str,
    output: Path,
    *,
    seed: int,
    schema_version: str,
    per_rank: bool,
    labels: bool,
    **numbers: int,
) -> None:
    """Write a report, or the reports of a run, with its answers."""
    if name in RUN_SCENARIOS:
        how = {"per_rank": per_rank, "is_labelled": labels}
        simulate_run(name, output, seed=seed, schema_version=schema_version, **how)
        return
    base, dot, suffix = output.name.partition(".json")
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "run.sqlite" if dot else output
        if name in SCENARIOS:
            truth = simulate_scenario(name, export, seed=seed, schema_version=schema_version)
        else:
            simulate = simulate_ddp if name == "ddp" else simulate_gloo
            truth = simulate(export, seed=seed, **{key: numbers[key] for key in _ARGUMENTS[name]})
        if dot:
            write_traces(export, output.parent, base, f"{dot}{suffix}")
            shutil.copyfile(truth, output.with_name(f"{base}.truth.json"))


if __name__ == "__main__":
    command(prog_name="python -m sample_traces.simulator")
