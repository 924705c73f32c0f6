"""What several pages show of one thing is the same number, and findings have one order."""

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest

from dashboards.address import Address, parse
from dashboards.pages import overview
from dashboards.pages import ranks as ranks_page
from dashboards.pages import steps as steps_page
from dashboards.pages import what_if as what_if_page
from dashboards.questions import PendingAnswer
from dashboards.view import View
from tests.support.dashboard import components, text
from tests.support.pages import lines_of
from tests.support.selection import known, long_after
from tests.support.traces import SAMPLE_FOLDER, analysis_of
from traceprof.analysis import Analysis
from traceprof.findings import by_id
from traceprof.replay.whatif import answers_to

REPORTS = ("training", "nccl-serialization", "ddp", "warm-up", "launch-queue-stall")


@pytest.fixture(scope="module", params=long_after(1, REPORTS))
def analysis(request: pytest.FixtureRequest) -> Iterator[Analysis]:
    with analysis_of(SAMPLE_FOLDER / f"{request.param}.sqlite") as result:
        yield result


def classed(tree: Any, name: str) -> list[Any]:
    return [
        one for one in components(tree) if name in str(getattr(one, "className", "")).split(" ")
    ]


def column(page: str, table: str, head: str) -> dict[str, float]:
    """Return a column of a table, by rank."""
    heads, *lines = page[page.index(f"table {table}: ") :].splitlines()
    place = heads.removeprefix(f"table {table}: ").split(" | ").index(head)
    rows = [line.split(" | ") for line in takewhile(lambda line: line[:1] == " ", lines)]
    return {row[0].strip(): float(row[place]) for row in rows}


def test_what_is_shown_twice_is_shown_alike(analysis: Analysis) -> None:
    view = View(analysis, Address())
    drawn = PendingAnswer(answers_to(analysis, ()), is_over=True)
    said, steps, ranks, what_if = (
        "\n".join(lines_of(tree))
        for tree in (
            *(page.layout(view) for page in (overview, steps_page, ranks_page)),
            what_if_page.drawn(drawn),
        )
    )
    (takes, rank) = known(re.search(r"A step takes ([\d.]+) ms on rank (\d)", said)).groups()
    lengths = column(steps, "steps", "step (ms)")
    assert lengths == column(ranks, "ranks", "step (ms)")
    assert float(takes) == pytest.approx(max(lengths.values()), rel=2e-3)
    assert lengths[rank] == max(lengths.values())
    assert f"as it is | {takes} ms | of {takes} ms" in what_if
    of_ranks = re.findall(r"\[rank \d\].* (\| [\d.]+(?: \| [\d.]+){5})$", said, re.MULTILINE)
    assert len(of_ranks) == len(lengths)
    assert all(shares in ranks for shares in of_ranks)
    gains = re.findall(r"takes (?:at most )?([\d.]+ .s) less \(([\w=-]+)\)", said)
    for gain, assumed in gains:
        listed = re.search(rf"^{assumed}{{.*", what_if, re.MULTILINE)
        assert listed is None or f"−{gain}" in listed[0]
    assert gains


def test_findings_have_the_order_of_the_report(analysis: Analysis) -> None:
    shown = text(overview.layout(View(analysis, Address())))
    ids = [group[0].id for group in by_id(analysis.findings)]
    begin = shown.index("Findings ") if ids else 0
    first = [shown.index(id_, begin) for id_ in ids]
    assert first == sorted(first)
    pieces = re.split("It could take|Findings ", shown)[1:]
    for piece in pieces:
        places = [piece.index(id_) for id_ in ids if id_ in piece]
        assert places == sorted(places)


def test_with_a_time_chosen_nothing_is_of_all_of_the_time(analysis: Analysis) -> None:
    result = analysis.result.breakdown[0]
    start = result.judged.window_start_ns
    address = parse("/", f"start={start}&end={start + result.judged.window_ns // 2}")
    tree = overview.layout(View(analysis, address))
    assert not classed(tree, "headline")
    assert "no finding accounts for" not in text(tree)


def test_nothing_is_bold_that_may_be_nothing(analysis: Analysis) -> None:
    lows = {
        finding.id: finding.saving.low_ns or 0
        for finding in analysis.findings
        if finding.saving is not None
    }
    tree = overview.layout(View(analysis, Address()))
    for said in classed(tree, "could-take"):
        for place, part in enumerate(said.children):
            if type(part).__name__ == "Strong" and str(part.children).startswith("−"):
                assert lows[said.children[place + 2].children] > 0
