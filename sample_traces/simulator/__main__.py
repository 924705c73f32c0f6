"""`python -m sample_traces.simulator NAME -o FILE`: writes a report with known answers."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sample_traces.simulator.ddp import simulate_ddp
from sample_traces.simulator.gloo import simulate_gloo
from sample_traces.simulator.kineto_writer import simulate_into
from sample_traces.simulator.scenarios import SCENARIOS, SCHEMA_VERSIONS, simulate_scenario
from sample_traces.simulator.scenarios.runs import RUN_SCENARIOS, simulate_run
from sample_traces.simulator.truth import check_is_free
from traceprof.cli.main import SuggestingGroup
from traceprof.cli.output import check_files, filled_folder
from traceprof.errors import TraceprofError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SEED = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the random durations."
)
_TO_EXPORT = click.option(
    "-o",
    "--output",
    required=True,
    metavar="X.sqlite",
    help="The export to write; X.json or X.json.gz becomes a trace of torch.profiler for each"
    " process.",
)


class _Scenarios(SuggestingGroup):
    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  (as click has it)
        try:
            return super().invoke(ctx)
        except TraceprofError as error:
            raise click.ClickException(str(error)) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *SCENARIOS, *RUN_SCENARIOS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SCENARIOS:
            return _scenario(cmd_name, SCENARIOS[cmd_name].summary)
        if cmd_name in RUN_SCENARIOS:
            return _run(cmd_name, RUN_SCENARIOS[cmd_name].summary)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Scenarios)
def command() -> None:
    """Write an export in the Nsight schema, or traces of torch.profiler, with known answers."""


@command.command("ddp", short_help="Data-parallel training of any size.")
@click.option("--gpus", type=int, default=2, show_default=True, help="Ranks, one to a GPU.")
@click.option("--steps", type=int, default=5, show_default=True, help="Training steps.")
@click.option(
    "--kernels-per-step",
    type=int,
    default=40,
    show_default=True,
    help="Kernels of each rank and step, including NCCL's.",
)
@_SEED
@_TO_EXPORT
def ddp(gpus: int, steps: int, kernels_per_step: int, seed: int, output: str) -> None:
    """Simulate data-parallel training on one host; the answers go to X.truth.json."""
    numbers = {"gpus": gpus, "steps": steps, "kernels_per_step": kernels_per_step, "seed": seed}
    _write(output, lambda path: simulate_ddp(path, **numbers))


@command.command("gloo", short_help="Pairs of ranks without a GPU, more and more at once.")
@click.option("--pairs", type=int, default=4, show_default=True, help="Pairs, and steps.")
@click.option(
    "--operations",
    type=int,
    default=30,
    show_default=True,
    help="Small all-reduces of each pair in each step.",
)
@_SEED
@_TO_EXPORT
def gloo(pairs: int, operations: int, seed: int, output: str) -> None:
    """Simulate training over Gloo on one host; the answers go to X.truth.json."""
    numbers = {"pairs": pairs, "operations": operations, "seed": seed}
    _write(output, lambda path: simulate_gloo(path, **numbers))


def _write(output: str, simulate: Callable[[Path], Path]) -> None:
    check_files(output)
    folder = Path(output).parent
    with _all_or_none(folder) as beside:
        written, truth = simulate_into(beside / Path(output).name, simulate)
    click.echo("\n".join(str(folder / path.name) for path in (*written, truth)))


@contextmanager
def _all_or_none(folder: Path) -> Iterator[Path]:
    """Yield an empty folder whose files are moved into another one at the end, all or none."""
    with filled_folder(str(folder)) as beside:
        yield beside
        for path in beside.iterdir():
            check_is_free(folder / path.name)


def _schema_version(text: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        "--schema-version",
        type=click.Choice(SCHEMA_VERSIONS),
        default=SCHEMA_VERSIONS[-1],
        show_default=True,
        help=text,
    )


def _scenario(name: str, summary: str) -> click.Command:
    @click.command(name, short_help=summary, help=f"{summary} The answers go to X.truth.json.")
    @_SEED
    @_schema_version("Schema version of the export.")
    @_TO_EXPORT
    def scenario(seed: int, schema_version: str, output: str) -> None:
        _write(
            output,
            lambda path: simulate_scenario(name, path, seed=seed, schema_version=schema_version),
        )

    return scenario


def _run(name: str, summary: str) -> click.Command:
    @click.command(
        name, short_help=summary, help=f"{summary} The answers go to truth.json beside the reports."
    )
    @click.option(
        "--seed", type=int, default=0, show_default=True, help="Seed of everything that varies."
    )
    @click.option(
        "--per",
        type=click.Choice(["node", "rank"]),
        default="node",
        show_default=True,
        help="Write one report for each node or for each rank.",
    )
    @click.option("--labels/--no-labels", default=True, help="Whether instrument was enabled.")
    @_schema_version("Schema version of the exports.")
    @click.option("-o", "--output", required=True, metavar="DIR", help="The folder to write to.")
    def run(seed: int, per: str, labels: bool, schema_version: str, output: str) -> None:
        check_files(output)
        with _all_or_none(Path(output)) as beside:
            truth = simulate_run(
                name,
                beside,
                seed=seed,
                per_rank=per == "rank",
                is_labelled=labels,
                schema_version=schema_version,
            )
        click.echo(f"{output}\n{Path(output) / truth.name}")

    return run


if __name__ == "__main__":
    command(prog_name="python -m sample_traces.simulator")
