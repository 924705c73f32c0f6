"""`python -m tests.fuzz --num 10000 --seed 1`: damaged files by the thousand, until one is wrong.

Exports of `sample_traces/` and small ones of TRACEPROF_TRACES are damaged in their bytes, by SQL,
or while they are read, a quarter of them with 100,000 rows, many with small pages, and read in
small slices; a trace of torch.profiler in its bytes and its values; stores and saved
analyses in SQL and JSON; and options are given what they do not take. The files go to `analyze`,
`info`, `whatif`, `compare`, `export` and `runs`. Each must be answered or refused with one line,
within 10 s and 500 MB, and neither be changed nor have anything left beside it; what SQLite or
`json` calls malformed must be refused.
"""

import tempfile
from pathlib import Path

import click

from tests.support.fuzz.running import results


@click.command()
@click.option("--num", default=10_000, show_default=True, help="How many files.")
@click.option("--seed", default=1, show_default=True, help="Of all that is chosen.")
@click.option("--first", default=0, show_default=True, help="The number of the first file.")
def main(num: int, seed: int, first: int) -> None:
    """Damage exports and look at what comes of them; those of wrong answers are kept."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    num_wrong = 0
    for result in results(folder, num, seed, first):
        if result.problem is not None:
            num_wrong += 1
            click.echo(f"{folder}/{result.number}: {result.what}\n{result.problem}")
        if (result.number - first + 1) % 100 == 0:
            click.echo(f"{result.number - first + 1} files, {num_wrong} wrong", err=True)
    if num_wrong:
        raise click.ClickException(f"{num_wrong} of {num} files got a wrong answer")
    folder.rmdir()
    click.echo(f"{num} files, each answered or refused as it should be")


if __name__ == "__main__":
    main()
