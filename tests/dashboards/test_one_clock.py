"""All ranks of a run stand on one clock, on every page and in every reply."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

from dashboards.address import Address
from dashboards.clock import Clock, RankClock
from dashboards.pages import overview
from dashboards.pages import timeline as timeline_page
from dashboards.server.serving import DashboardServer
from dashboards.view import View
from tests.support.builders import TraceBuilder
from tests.support.dashboard import Timeline, asking, attributes_of
from traceprof.analyses import breakdown, straggler
from traceprof.analysis import Analysis, analyze
from traceprof.communication.messages import messages
from traceprof.run.session_clocks import Clocks, MachineClock


@pytest.fixture
def run(straggling: tuple[Analysis, int]) -> Analysis:
    return straggling[0]


@pytest.mark.parametrize("drift", [0.0, 67e-6, -67e-6])
def test_a_time_of_the_run_is_the_first_one_of_the_report_at_or_after_it(drift: float) -> None:
    machine = MachineClock("b", "operations", -6_499_563, drift, 1_634_268_611, 25_000, 84)
    clock = RankClock(Clocks((394_911_582,), (0,), (machine,), (0,), None), 0, 7, 25_000)
    for time in [-5, 0, *range(10**12, 10**12 + 20_000, 999), 1_726_722_437_796_624_059]:
        own = clock.own(time)
        assert clock.at(own - 1) < time <= clock.at(own)


def test_a_collective_stands_where_the_analysis_matched_it(run: Analysis) -> None:
    ask, clock = asking(run), Clock.of(run)
    ranks, by_number = run.ranks, {rank.rank: rank for rank in run.run.ranks}
    for waits in ranks.waits[:2]:
        row = int(np.flatnonzero(waits.is_known & ~waits.is_unknown)[-1])
        member = by_number[ranks.ranks[waits.group.members[-1]]]
        kernel = int(messages(member).kernel[waits.group.place[row, -1]])
        answer = ask("collective", id=f"{member.rank}.op.{kernel}")
        shown = answer["members"]
        last = ranks.ranks[waits.group.members[int(waits.last[row])]]
        waited = {one["rank"]: int(one["wait"]) for one in shown}
        assert (answer["last"], waited[last]) == (last, min(waited.values()))
        assert max(waited.values()) == int(waits.wait_ns[row].max())
        first = ranks.clocks.seeds_ns[0]  # times are those of the first report
        numbers = [ranks.ranks[member] for member in waits.group.members]
        expected = dict(zip(numbers, (waits.start_ns[row] - first).tolist(), strict=True))
        assert {one["rank"]: int(one["start"]) for one in shown} == expected
        ends = [int(one["end"]) for one in shown]
        most = max(clock.rank(number).uncertainty_ns or 0 for number in numbers)
        assert max(ends) - min(ends) <= 2 * most
        # Asked from any of them; in its row, its details and the list of events there, too.
        for one in shown:
            assert ask("collective", id=one["id"]) == answer
            event = ask("event", id=one["id"])
            assert (event["start"], event["row"]) == (one["start"], one["row"])
            (listed, *_) = ask(
                "events", rows=one["row"], start=one["start"], end=int(one["start"]) + 1
            )["events"]
            assert (listed["id"], listed["start"]) == (one["id"], one["start"])
            found = ask(
                "search", rank=one["rank"], text=event["name"], at=one["start"], direction="next"
            )
            assert found["next"]["start"] == one["start"]


def test_a_time_chosen_is_the_same_moment_on_all_ranks(run: Analysis) -> None:
    clock = Clock.of(run)
    first = run.of(breakdown)[0]
    start = first.steps[3].measures.window_start_ns
    end = start + first.steps[3].measures.window_ns
    view = View(run, Address(overview.PATH, start_ns=start, end_ns=end))
    measured = view.of(breakdown)
    assert len(measured) == len(run.run.ranks)
    for result in measured:
        own = clock.rank(result.rank).own
        whole = result.whole
        assert (whole.window_start_ns, whole.window_ns) == (own(start), own(end) - own(start))
        assert whole.compute_ns > 0


def test_ranks_that_cannot_be_compared_stand_apart(tmp_path: Path) -> None:
    paths = []
    for rank in range(3):
        trace = TraceBuilder().kernel(1000 * rank, 1000 * rank + 100).nvtx(f"MPI Rank {rank}", 0, 5)
        paths.append(trace.write(tmp_path / f"{rank}.sqlite"))
    with closing(analyze(*paths)) as analysis:
        clock = Clock.of(analysis)
        assert [clock.rank(rank).panel for rank in range(3)] == [0, 1, 2]
        # They begin together, so that one sees them.
        ask = asking(analysis)
        assert {ask("event", id=f"{rank}.op.0")["start"] for rank in range(3)} == {"0"}
        clocks = json.loads(attributes_of(analysis, Address(timeline_page.PATH))["clocks"])
        assert [panel["ranks"] for panel in clocks["panels"]] == [[0], [1], [2]]
        assert "does not say when the recording began" in clocks["panels"][1]["why"]


@pytest.mark.long
def test_one_all_to_all_of_eight_real_ranks_ends_within_2_us(traces: Path) -> None:
    folder = traces / "kineto/dlrm_8ranks"
    with closing(analyze(*sorted(folder.glob("*.json.gz")))) as analysis:
        ask, number = asking(analysis), 0
        rank = next(rank for rank in analysis.run.ranks if rank.rank == 0)
        said = messages(rank)
        for place, kernel in enumerate(said.kernel.tolist()):
            if said.operations[int(said.operation[place])] != "AlltoAll":
                continue
            members = ask("collective", id=f"0.op.{kernel}")["members"]
            assert len(members) == 8
            ends = [int(one["end"]) for one in members]
            assert max(ends) - min(ends) <= 2000
            number += 1
        assert number >= 3


@pytest.mark.long
@pytest.mark.slow
def test_a_straggler_and_those_who_waited_are_seen_together(page: Page, run: Analysis) -> None:
    (finding,) = (finding for finding in run.findings if finding.id == straggler.ID)
    with DashboardServer(has_token=False) as server:
        server.show(run)
        page.goto(server.url)
        card = page.locator(f"#finding-{finding.id}")
        card.evaluate("card => { card.open = true; }")
        card.locator(".evidence a").first.click()
        page.wait_for_url("**/timeline?*")
        shown = Timeline(page, page.url)
        shown.wait_for("t.together.shown?.members.every(({ row }) => t.layout.rowOf(row))")
        shown.wait()
        members = shown.ask("t.together.shown.members")
        evidence = shown.ask("t.chosenEvidence")
        (late,) = (member for member in members if member["rank"] == finding.rank)
        assert evidence["end"] == late["begin"]
        start, span = shown.view
        assert all(start < one["begin"] + one["length"] < start + span for one in members)
        assert "waited" in shown.panel
        head = f"t.rows.find((row) => row.type === 'rank' && row.number === {finding.rank})"
        assert shown.ask(f"{head}.note").startswith("clock ± ")
        page.goto("about:blank")  # before the server goes
