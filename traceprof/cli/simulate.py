"""`traceprof simulate`: exports in the Nsight schema whose answers are known."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(
    "simulate", no_args_is_help=False, short_help="Write an export whose answers are known."
)
def command() -> None:
    """Write an export in the Nsight schema, and beside it what an analysis must find in it."""


@command.command("ddp")
@click.option("--gpus", type=int, default=2, show_default=True, help="Ranks, one to a GPU.")
@click.option("--steps", type=int, default=5, show_default=True, help="Training steps.")
@click.option(
    "--kernels-per-step",
    type=int,
    default=40,
    show_default=True,
    help="Kernels of each rank and step, NCCL's among them.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random durations.")
@click.option("-o", "--output", required=True, metavar="X.sqlite", help="The export to write.")
def ddp(gpus: int, steps: int, kernels_per_step: int, seed: int, output: str) -> None:
    """Simulate data-parallel training on one host; the answers go to X.truth.json."""
    from traceprof.simulate.ddp import simulate_ddp

    path = Path(output)
    truth = simulate_ddp(path, gpus=gpus, steps=steps, kernels_per_step=kernels_per_step, seed=seed)
    click.echo(f"{path}\n{truth}")
