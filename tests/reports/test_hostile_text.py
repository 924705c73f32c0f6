"""Text that a report brings along is shown, and never drives a terminal or rich's markup."""

import re
from pathlib import Path

import pytest

from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.commands import alter, in_process, printed
from traceprof.cli.main import EXIT_DONE
from traceprof.errors import one_line
from traceprof.trace.nsight import schema

HOSTILE = "\x1b]0;owned\x07\x9b31m[/nothing][red]\r\n:bomb:\u202e"
EXPORT = schema.EXPORT_METADATA[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two reports of one run that are hostile wherever they can be."""
    folder = tmp_path_factory.mktemp("hostile")
    for rank in range(2):
        pid = 1000 + rank
        builder = TraceBuilder().gpu(f"NVIDIA H100{HOSTILE}", pid=pid)
        builder.machine(host=f"host{rank}{HOSTILE}", start_utc=10**18)
        for step in range(3):
            start = step * 1000
            builder.kernel(start, start + 500, f"gemm{HOSTILE}", pid=pid)
            builder.kernel(start + 500, start + 900, NCCL, stream=20, pid=pid)
            builder.nvtx(f"step {step}", start, start + 1000, pid=pid)
            builder.nvtx(f"owned{HOSTILE}", start, start + 900, pid=pid)
        alter(
            builder.write(folder / f"rank_{rank}.sqlite"),
            f"DELETE FROM {EXPORT} WHERE name = '{schema.PRODUCT_VERSION}'",
            f"INSERT INTO {EXPORT} (name, value) VALUES ('{schema.PRODUCT_VERSION}', '{HOSTILE}')",
        )
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        *(
            ["analyze", "--kernels", "--format", format_]
            for format_ in ("text", "json", "html", "markdown")
        ),
    ],
    ids=lambda arguments: arguments[-1],
)
def test_it_never_reaches_the_terminal(folder: Path, arguments: list[str]) -> None:
    outcome = in_process(*arguments, folder)
    assert outcome.code == EXIT_DONE
    out = outcome.out
    assert all(line.isprintable() for line in (out + outcome.err).split("\n"))
    shown = out.encode().decode("unicode_escape") if "json" in arguments else out
    if "markdown" in arguments:
        shown = re.sub(r"\\(\W)", r"\1", shown)
    assert "owned" in shown
    if "json" not in arguments:
        assert one_line(HOSTILE[:10]) in shown
        assert "[/nothing][red]" in shown  # neither read as marks of rich …
        assert ":bomb:" in shown  # … nor as its names of pictures


def test_long_names_are_cut(tmp_path: Path) -> None:
    shown = printed("analyze", TraceBuilder().gpu("G" * 5000).kernel(0, 9).write(tmp_path))
    assert "GGGG" in shown
    assert max(map(len, shown.splitlines())) <= 200
