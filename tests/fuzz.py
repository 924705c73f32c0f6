"""`python -m tests.fuzz --minutes 60 --seed 1`: damaged files, until the time is over.

Exports of `sample_traces/` and small ones of TRACEPROF_TRACES are damaged in their bytes, by SQL,
or while they are read, a quarter of them with 100,000 rows, many with small pages, and read in
small slices; a trace of torch.profiler in its bytes and its values; stores and saved
analyses in SQL and JSON; and options are given what they do not take. The files go to `analyze`,
`info`, `whatif`, `compare`, `export`, `runs`, and to the dashboard's pages and requests. Each must
be answered or refused with one line, within 10 s and 500 MB, and neither be changed nor have
anything left beside it; what SQLite or `json` calls malformed must be refused.

An input that is answered wrongly is made as small as possible and kept, and what is kept is damaged
further, too: in `tests/support/fuzz/corpus`, which `make test` tries, and in the folder of
`--findings`. Move what was mended from there to the corpus.
"""

import itertools
import tempfile
import time
from contextlib import closing
from pathlib import Path

import click

from tests.support.fuzz.running import Fuzzer


@click.command()
@click.option("--num", type=int, help="How many files, without --minutes 10,000.")
@click.option("--minutes", type=float, help="For how long.")
@click.option("--seed", default=1, show_default=True, help="Of all that is chosen.")
@click.option("--first", default=0, show_default=True, help="The number of the first file.")
@click.option(
    "--findings",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/fuzz"),
    show_default=True,
    help="The folder in which inputs are kept that are answered wrongly.",
)
def main(num: int | None, minutes: float | None, seed: int, first: int, findings: Path) -> None:
    """Damage exports and look at what comes of them; those of wrong answers are kept."""
    if num is None and minutes is None:
        num = 10_000
    until = None if minutes is None else time.monotonic() + 60 * minutes
    num_tried, num_wrong = 0, 0
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-") as folder,
        closing(Fuzzer(Path(folder), seed, findings)) as fuzzer,
    ):
        for number in itertools.count(first):
            if num_tried == num or (until is not None and time.monotonic() > until):
                break
            result = fuzzer.tried(number)
            num_tried += 1
            if result.problem is not None:
                num_wrong += 1
                click.echo(f"{findings}/{seed}-{number}.json: {result.what}\n{result.problem}")
            if num_tried % 100 == 0:
                click.echo(f"{num_tried} files, {num_wrong} wrong", err=True)
    if num_wrong:
        raise click.ClickException(f"{num_wrong} of {num_tried} files got a wrong answer")
    click.echo(f"{num_tried} files, each answered or refused as it should be")


if __name__ == "__main__":
    main()
