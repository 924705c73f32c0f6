"""What if: the answers of `traceprof whatif`, worked out beside the page, with their checks."""

import threading

import pytest
from msgspec import structs
from playwright.sync_api import Page, expect

from dashboards.address import Address
from dashboards.pages import what_if
from dashboards.questions import PendingAnswer, Questions, answer_by, questions_about
from dashboards.view import View
from tests.support.dashboard import named, text
from tests.support.workers import until
from traceprof.analysis import Analysis
from traceprof.errors import UsageError
from traceprof.progress import Progress
from traceprof.replay.assumptions.assumption import defaults
from traceprof.replay.results import WhatIf
from traceprof.replay.whatif import answers_to
from traceprof.units import duration

ASSUMED = ("no-sync", "link=4x")


@pytest.fixture(scope="module")
def asked(analysis: Analysis) -> WhatIf:
    return answers_to(analysis, ASSUMED)


def test_bars_are_what_is_gained(asked: WhatIf) -> None:
    assert asked.baseline is not None
    step_ns = asked.baseline.step_ns
    half = structs.replace(
        asked.answers[0],
        step_ns=step_ns // 2,
        change_ns=-(step_ns // 2),
        low_ns=step_ns // 4,
        high_ns=step_ns * 3 // 4,
        is_bound=False,
        is_too_small=False,
        refused=None,
    )
    refused = structs.replace(half, assume="launch=0", step_ns=None, refused="<no launches>")
    whatif = structs.replace(asked, answers=(half, refused))
    tree = what_if.drawn(PendingAnswer(whatif, is_over=True))
    (bar,) = (part for part in named(tree, "Span") if getattr(part, "className", "") == "gain")
    most, least, mark = bar.children
    assert (most.style, least.style) == ({"width": "75.00%"}, {"width": "25.00%"})
    assert mark.style == {"left": "50.00%"}
    assert "−50.0 %" in text(tree)  # the one minus of all tables
    (folded,) = (one for one in named(tree, "Details") if "<no launches>" in text(one))
    assert not folded.open
    assert text(folded).startswith("This recording does not answer launch=0")


def test_a_question_is_asked_once_and_nobody_waits(asked: WhatIf) -> None:
    may_go_on, times = threading.Event(), []

    def ask(assumed: tuple[str, ...], progress: Progress) -> WhatIf:
        times.append(assumed)
        progress.expect(3)
        progress.expect(5)
        progress.advance(2)
        may_go_on.wait()
        return asked

    questions = Questions(ask)
    question = questions.about(ASSUMED)
    assert not question.is_over
    until(lambda: question.done == 2)
    waiting = what_if.drawn(question)
    assert text(waiting) == "Replaying the steps: 25.0 %"
    (bar,) = named(waiting, "Progress")
    assert (bar.value, bar.max) == ("2", "8")
    assert text(what_if.drawn(PendingAnswer())) == "Replaying the steps …"
    assert questions.about(ASSUMED) is question
    other = questions.about(())
    may_go_on.set()
    until(lambda: question.is_over and other.is_over)
    assert question.answer is asked
    assert sorted(times) == [(), ASSUMED]


def test_a_replay_counts_its_processes_and_assumptions(analysis: Analysis) -> None:
    progress = PendingAnswer()
    answers_to(analysis, ASSUMED, progress)
    num_processes = len({(rank.report, rank.process) for rank in analysis.run.ranks})
    assert progress.done == progress.expected == num_processes + len(ASSUMED) + 1


def test_an_answer_that_fails_says_so() -> None:
    def ask(*_: object) -> WhatIf:
        raise UsageError("cannot assume this", "it is nothing", "choose another")

    question = Questions(ask).about(())
    until(lambda: question.is_over)
    assert "cannot assume this: it is nothing" in text(what_if.drawn(question))


def test_the_form_offers_every_assumption_that_is_answered_by_default(
    analysis: Analysis, asked: WhatIf
) -> None:
    answer_by(analysis, lambda *_: asked)
    (ticked,) = named(what_if.layout(View(analysis, Address("/what-if"))), "Checklist")
    assert [option["value"] for option in ticked.options] == [one.text for one in defaults()]
    for option, one in zip(ticked.options, defaults(), strict=True):
        assert one.atoms[0].entry.meaning in text(option["label"])


def test_an_address_says_what_is_assumed(analysis: Analysis, asked: WhatIf) -> None:
    answer_by(analysis, lambda *_: asked)
    tree = what_if.layout(View(analysis, Address("/what-if", assume="no-sync;link=4x; ")))
    (ticked,) = named(tree, "Checklist")
    assert ticked.value == ["no-sync"]
    (others,) = named(tree, "Input")
    assert others.value == "link=4x"
    with pytest.raises(UsageError, match="no assumption"):
        what_if.layout(View(analysis, Address("/what-if", assume="no-such-thing")))
    assert questions_about(analysis) is questions_about(analysis)


@pytest.mark.long
def test_in_the_browser_assumptions_are_ticked(page: Page, sample_url: str, asked: WhatIf) -> None:
    page.goto(f"{sample_url}/what-if")
    expect(page.get_by_role("heading", name="Can the replay be believed?")).to_be_visible()
    page.get_by_text("Assume …").click()
    page.get_by_text("the host never waits for the GPU").click()
    page.get_by_label("other assumptions").fill("link=4x")
    page.get_by_role("button", name="Replay").click()
    page.wait_for_url("**/what-if?assume=no-sync*")
    both = page.locator("table.what-if tr", has_text="no-sync + link=4x")
    expect(both).to_be_visible()
    least = duration(asked.answers[-1].low_ns or 0)
    expect(both.locator("td").first).to_have_text(f"at least {least}")
    page.go_back()
    expect(page.get_by_label("other assumptions")).to_have_value("")
    expect(page.get_by_label("other assumptions")).to_be_hidden()
