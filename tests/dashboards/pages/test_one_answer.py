"""What several pages show of one thing is the same number, and findings have one order."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from dashboards.address import Address, parse
from dashboards.pages import compare, launch_queue, nccl, overlap, overview, ranks, steps, what_if
from dashboards.questions import CompareQuestion, PendingAnswer, compared_with
from dashboards.view import View
from dashboards.widgets.charts import PARTS
from dashboards.widgets.tables import fraction_of
from tests.support.dashboard import components, named, text
from tests.support.selection import known, long_after
from tests.support.traces import SAMPLE_FOLDER, analysis_of
from traceprof.analysis import Analysis, Options
from traceprof.findings import by_id
from traceprof.replay.whatif import answers_to

REPORTS = ("training", "nccl-serialization", "ddp", "warm-up", "launch-queue-stall")
NAMES = {measure: name for measure, name, _ in PARTS}
UNITS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9, "%": 0.01, "": 1.0}
NUMBER = re.compile(r"([\d.,]+) ?(ns|µs|ms|s|%|)(?![\w])")

Key = tuple[Any, ...]


class Seen(NamedTuple):
    """A number as a page shows it, and how far its digits leave it open."""

    page: str
    value: float
    open: float


class Quantities:
    """What pages show, by what it is."""

    def __init__(self) -> None:
        self.of: defaultdict[Key, list[Seen]] = defaultdict(list)

    def text(self, page: str, key: Key, written: str) -> None:
        """Take a number with its unit."""
        found = NUMBER.search(written)
        assert found, (page, key, written)
        digits = found[1].replace(",", "")
        last = 10.0 ** -len(digits.partition(".")[2])
        unit = UNITS[found[2]]
        self.of[key].append(Seen(page, float(digits) * unit, 0.51 * last * unit))

    def exact(self, page: str, key: Key, value: float | None) -> None:
        """Take a number as a table has it, whatever it rounds."""
        if value is not None:
            self.of[key].append(Seen(page, value, 1e-6 * abs(value)))

    def contradictions(self) -> list[tuple[Key, list[Seen]]]:
        """Return what is shown with several values."""
        return [
            (key, seen)
            for key, seen in self.of.items()
            if max(one.value - one.open for one in seen) > min(one.value + one.open for one in seen)
        ]


@pytest.fixture(scope="module", params=long_after(1, REPORTS))
def analysis(request: pytest.FixtureRequest) -> Iterator[Analysis]:
    with analysis_of(SAMPLE_FOLDER / f"{request.param}.sqlite") as result:
        yield result


def classed(tree: Any, name: str) -> list[Any]:
    return [
        one for one in components(tree) if name in str(getattr(one, "className", "")).split(" ")
    ]


def grid(tree: Any, name: str) -> list[dict[str, Any]]:
    tables = named(tree, "AgGrid")
    return next((table.rowData for table in tables if table.id["name"] == name), [])


def cells(row: Any) -> list[str]:
    return [text(cell) for cell in row.children]


def collect_overview(found: Quantities, analysis: Analysis) -> None:
    tree, headline = overview.layout(View(analysis, Address())), known(analysis.result.headline)
    (card,) = classed(tree, "headline")
    found.text("headline", ("step",), text(classed(card, "takes")[0]))
    said = re.findall(r"([\d.]+ %) (compute|exposed communication|idle)", text(card))
    for share, part in said:
        found.text("headline", ("share", headline.breakdown.rank, part), share)
    (table,) = classed(tree, "breakdown")
    for row in named(table, "Tbody")[0].children:
        number = int(cells(row)[0].removeprefix("rank "))
        values = cells(row)[-len(PARTS) - 2 :]
        found.text("table", ("training", number), f"{values[0]} ms")
        for (_, name, _), value in zip(PARTS, values[1:], strict=False):
            found.text("table", ("share", number, name), f"{value} %")
        if values[-1][0].isdigit():
            found.text("table", ("hidden", number), f"{values[-1]} %")
        for part in classed(row, "bar")[0].children:
            name, _, rest = part.title.partition(": ")
            length, _, share = rest.partition(", ")
            found.text("bar", ("time", number, name), length)
            found.text("bar", ("share", number, name), share)
    for card in classed(tree, "finding"):
        collect_card(found, card)


def collect_card(found: Quantities, card: Any) -> None:
    finding = card.id.removeprefix("finding-")
    gain = text(named(card, "Strong")[0]).removeprefix("at most ")
    if gain[-1] == "s":
        found.text("bars", ("gain", finding), gain)
    cost = text(classed(card, "cost")[0])
    if "%" in cost:
        found.text("card", ("cost", finding), cost.partition("· ")[2])
    less = re.search(r"takes (?:at most )?([\d.]+ \S+) less", text(card))
    if less:
        found.text("card", ("gain", finding), less[1])
    collect_metrics(found, card, finding)


def collect_metrics(found: Quantities, card: Any, finding: str) -> None:
    rank = int(re.search(r"Numbers of rank (\d+)", text(card))[1])  # type: ignore[index]
    metrics = {
        text(pair.children[0]): text(pair.children[1])
        for pair in classed(card, "metrics")[0].children
    }
    parts = {
        "exposed-communication": ("exposed_ns", "exposed communication"),
        "exposed-copy": ("exposed_ns", "exposed copy"),
        "gpu-idle": ("idle_ns", "idle"),
    }
    if finding in parts:
        name, part = parts[finding]
        found.text("numbers", ("time", rank, part), metrics[name])
    for name in (
        "stall_ns",
        "num_stalls",
        "max_queue_depth",
        "blocked_ns",
        "num_blocked",
        "slowdown",
    ):
        if name in metrics and metrics[name][0].isdigit():
            found.text("numbers", (finding, rank, name), metrics[name])


def collect_others(found: Quantities, analysis: Analysis) -> None:
    headline = known(analysis.result.headline)
    tree = ranks.layout(View(analysis, Address("/ranks")))
    for row in grid(tree, "ranks"):
        found.exact("ranks", ("training", row["rank"]), row["window_ns"])
        for measure, name in NAMES.items():
            found.exact("ranks", ("share", row["rank"], name), row[fraction_of(measure)])
        found.exact("ranks", ("hidden", row["rank"]), row["hidden_fraction"])
        found.exact("ranks", ("rank step", row["rank"]), row["step_ns"])
        if row["rank"] == headline.breakdown.rank and headline.lengths:
            found.exact("ranks", ("step",), row["step_ns"])
    for row in named(steps.layout(View(analysis, Address("/steps"))), "Tbody"):
        for line in row.children:
            number = int(cells(line)[0].removeprefix("rank "))
            found.text("steps", ("rank step", number), f"{cells(line)[2]} ms")
    for row in grid(launch_queue.layout(View(analysis, Address("/launch-queue"))), "queues"):
        key = "launch-queue-stall", row["rank"]
        found.exact("launch queue", (*key, "stall_ns"), row["blocked_ns"])
        found.exact("launch queue", (*key, "num_stalls"), row["num_stalls"])
        found.exact("launch queue", (*key, "max_queue_depth"), row["max_queue_depth"])
    for row in grid(nccl.layout(View(analysis, Address("/nccl"))), "nccl-waits"):
        key = "nccl-serialization", row["rank"]
        found.exact("nccl", (*key, "blocked_ns"), row["blocked_ns"])
        found.exact("nccl", (*key, "num_blocked"), row["num_blocked"])
    for row in grid(overlap.layout(View(analysis, Address("/overlap"))), "overlap-ranks"):
        found.exact("overlap", ("overlap-slowdown", row["rank"], "slowdown"), row["slowdown"])


def collect_answers(found: Quantities, analysis: Analysis) -> None:
    asked = answers_to(analysis, ())
    if asked.refused is None and asked.baseline is not None:
        assumed = {
            finding.saving.assume: finding.id
            for finding in analysis.findings
            if finding.saving is not None
        }
        for row in named(what_if.drawn(PendingAnswer(is_over=True, answer=asked)), "Tr"):
            name, takes, *rest = cells(row)
            if name == "as it is":
                found.text("what if", ("step",), takes)
            elif name in assumed and (less := re.search(r"−([\d.]+ \S+)", " ".join(rest))):
                found.text("what if", ("gain", assumed[name]), less[1])
    before = analysis.run.traces[0].path
    question = CompareQuestion((str(before),), Options())
    shown = compare.drawn(PendingAnswer(is_over=True, answer=compared_with(analysis, question)))
    for said in re.findall(r"([\d.]+ \S+) (?:before|after)", text(classed(shown, "headline"))):
        found.text("compare", ("step",), said)


def test_what_is_shown_twice_is_shown_alike(analysis: Analysis) -> None:
    found = Quantities()
    collect_overview(found, analysis)
    collect_others(found, analysis)
    collect_answers(found, analysis)
    assert found.contradictions() == []
    twice = {key for key, seen in found.of.items() if len({one.page for one in seen}) > 1}
    assert len(twice) >= 10
    assert ("step",) in twice


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
