"""What docs/compare.md shows of real recordings, and its numbers of recordings, are true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import blocks, run, shows
from traceprof.cli.main import EXIT_DONE
from traceprof.run.mean_change import t_quantile

PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
SESSIONS = [block.removeprefix("$ ").partition("\n") for block in blocks(PAGE, "console")]
BLOCKS = [
    (command, output)
    for command, _, output in SESSIONS
    if "sample_traces/" not in command  # tests/docs/test_readme.py has these
]
HALVES = {"first.json": "2:31", "second.json": "31:60"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), BLOCKS)
def test_real_recordings_give_what_the_page_shows(
    command: str,
    output: str,
    traces: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    for name in words[1:3]:
        steps = HALVES.get(name)
        report = "a100x4_ddp_nobroadcast_rank0.sqlite" if steps else name
        [path] = traces.rglob(report)
        Path(report).unlink(missing_ok=True)
        Path(report).symlink_to(path)
        if steps is not None:
            arguments = ("--steps", steps, "--no-savings", "--format", "json", "-o", name)
            assert run("analyze", report, *arguments) == EXIT_DONE
    capfd.readouterr()
    assert run(*words) == EXIT_DONE
    printed = capfd.readouterr().out
    assert shows(output, printed), printed


def test_each_verdict_has_an_example() -> None:
    for verdict in ("faster", "slower", "same", "inconclusive"):
        assert f"after: {verdict}, " in PAGE
    assert "These two recordings differ by " in PAGE
    assert "\nNot comparable: " in PAGE


def found(num: int, change: float, deviation: float) -> float:
    """Return how often recordings, `num` a side, show a change (in %, as their deviation)."""
    draws = np.random.default_rng(1).normal(0, deviation, (2, 20_000, num))
    differences = change + draws[1].mean(axis=1) - draws[0].mean(axis=1)
    if num == 1:  # the deviation is known from the table
        return float((differences > 1.96 * deviation * 2**0.5).mean())
    variances = draws.var(axis=2, ddof=1).mean(axis=0)
    reaches = t_quantile(0.975, 2 * num - 2) * np.sqrt(variances * 2 / num)
    return float((differences > reaches).mean())


def test_so_many_recordings_show_a_change() -> None:
    rows = re.findall(r"^\| ([\d.]+) %[^|]* \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for deviation, *numbers in rows:
        for change, num in zip((1, 2, 5), map(int, numbers), strict=True):
            assert found(num, change, float(deviation)) > 0.89  # 0.90, but for chance of the draws
            assert num == 1 or found(num - 1, change, float(deviation)) < 0.91
