"""docs/reruns.md lists all pairs of recordings of unchanged programs, few of them false alarms."""

import json
import re
import statistics
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.commands import script_of

DOCS = Path(__file__).parents[2] / "docs"
TIMES = Path(__file__).parents[1] / "gpu" / "recordings"
WRITTEN = (DOCS / "reruns.md").read_text(encoding="utf-8")
RECORDINGS, ROUNDS = WRITTEN.split("\n## Rounds")
ROUND_ROW = re.compile(
    r"^\| ([\w/]+) \| ([\d. ]+) \| [\d.]+ % \| ([\d.]+) % \| (\d+) \|$", re.MULTILINE
)


@pytest.fixture(scope="module")
def reruns() -> ModuleType:
    return script_of("reruns")


def test_few_unchanged_programs_are_called_faster_or_slower() -> None:
    verdicts = re.findall(r"^\| `.* \| ([a-z ]+) \|$", RECORDINGS, re.MULTILINE)
    alarms = sum(verdict in {"faster", "slower"} for verdict in verdicts)
    rounds = ROUND_ROW.findall(ROUNDS)
    assert len(verdicts) >= 80
    assert len(rounds) >= 40
    beyond, num = sum(int(row[-1]) for row in rounds), 45 * len(rounds)
    assert alarms <= 0.06 * len(verdicts)
    assert beyond <= 0.06 * num
    assert f"in {alarms + beyond} of {len(verdicts) + num}\n" in WRITTEN
    compare = " ".join((DOCS / "compare.md").read_text(encoding="utf-8").split())
    assert f"Of {len(verdicts)} such pairs {alarms} (" in compare
    assert f"and of {num} pairs of rounds {beyond} (" in compare


def test_pairs_of_rounds_are_counted_as_their_lengths_say() -> None:
    """From the measured lengths and the reaches as they are written, which are rounded."""
    for name, lengths, reach, num in ROUND_ROW.findall(ROUNDS):
        folder, _, program = name.rpartition("/")
        times = json.loads((TIMES / folder / "times.json").read_text(encoding="utf-8"))
        rounds = times[program]["before"]
        assert [float(length) for length in lengths.split()] == pytest.approx(
            [length / 1000 for length in rounds], rel=0.006
        )
        shares = [
            100 * abs(one - other) / statistics.fmean(rounds)
            for one, other in combinations(rounds, 2)
        ]
        counts = [sum(share > float(reach) + off for share in shares) for off in (0.051, -0.051)]
        assert counts[0] <= int(num) <= counts[1], name


@pytest.mark.long
def test_windows_and_reruns_are_as_written(reruns: ModuleType, traces: Path) -> None:
    rows = reruns.pair_rows(traces)
    listed = [line for line in RECORDINGS.splitlines() if line.startswith("| `")]
    assert rows == listed, "run `make validation`"


@pytest.mark.long
def test_rounds_are_as_written(reruns: ModuleType) -> None:
    assert reruns.round_rows() == [row.group() for row in ROUND_ROW.finditer(ROUNDS)], (
        "run `make validation`"
    )
