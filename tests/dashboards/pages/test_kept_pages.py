"""What pages show of samples is kept as text: its difference is what a change does to them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from dash import html

from dashboards import shell
from dashboards.address import Address
from dashboards.pages import compare, query, what_if
from dashboards.pages.query import EXAMPLES
from dashboards.pages.registry import PAGES, Page
from dashboards.queries import answer
from dashboards.questions import CompareQuestion, PendingAnswer, compared_with
from dashboards.server.app import _page
from dashboards.view import View
from tests.support.kept_claims import KeptText
from tests.support.pages import lines_of
from tests.support.traces import SAMPLE
from traceprof.analysis import Analysis, Options
from traceprof.replay.whatif import answers_to

TRAINING = SAMPLE.with_stem("training")


def whole(module: Page, analysis: Analysis) -> Any:
    return _page(View(analysis, Address(module.PATH)))


def chosen(module: Page, analysis: Analysis) -> Any:
    """Return a page of one rank and the time of two of its steps."""
    first, last = (analysis.result.breakdown[1].steps[at].measures for at in (1, 2))
    time: dict[str, Any] = {"start_ns": first.window_start_ns, "end_ns": last.window_end_ns}
    return _page(View(analysis, Address(module.PATH, rank=(1,), **time)))


def bars(analysis: Analysis) -> Any:
    """Return the bar above all pages, with nothing and with a time chosen."""
    step = analysis.result.breakdown[0].steps[1].measures
    time: dict[str, Any] = {"start_ns": step.window_start_ns, "end_ns": step.window_end_ns}
    addresses = (Address(), Address("/steps", (1,), **time), Address("/timeline", end_ns=5))
    pages = [(page.PATH, page.TITLE) for page in PAGES]
    shown = [
        html.P([*shell.menu(pages, address), *shell.time(View(analysis, address))])
        for address in addresses
    ]
    reading = shell.shell(is_ready=False, has_scope=False)
    return [shell.shell(is_ready=True), reading, *shown]


def what_ifs(analysis: Analysis) -> Any:
    return what_if.drawn(PendingAnswer(answers_to(analysis, ()), is_over=True))


def compared(analysis: Analysis) -> Any:
    sides = compared_with(analysis, CompareQuestion((str(TRAINING),), Options()))
    return compare.drawn(PendingAnswer(sides, is_over=True))


def queried(analysis: Analysis) -> Any:
    sql = EXAMPLES["the parts of each step"]
    result = PendingAnswer(answer(analysis, sql), is_over=True)
    return query.drawn(result, View(analysis, Address(query.PATH, sql=sql)))


DRAWN: dict[str, Callable[[Analysis], Any]] = {
    **{page.TITLE: partial(whole, page) for page in PAGES},
    **{f"{page.TITLE} of two steps of a rank": partial(chosen, page) for page in PAGES},
    "Bar": bars,
    what_if.TITLE: what_ifs,
    compare.TITLE: compared,
    query.TITLE: queried,
}
ALL = ("Overview", "Timeline", "Steps", "Kernels", "Overlap", "NCCL", "Links", "Ranks")
CHOSEN = ("Overview", "Timeline", "Steps", "Kernels", "NCCL", "Launch queue", "Links", "Ranks")
OF_SAMPLES = {
    "ddp": ("Bar", *ALL, "Query"),
    "gloo": (*ALL, "Launch queue", "What if"),
    "mpi-wait": ALL,
    "uneven-clock": (*ALL, *(f"{title} of two steps of a rank" for title in CHOSEN)),
    "launch-queue-stall": ("Overview", "Steps", "NCCL", "Launch queue", "Ranks"),
    "overlap-slowdown": ("Steps", "Kernels", "Overlap", "NCCL", "What if", "Compare"),
    "nccl-serialization": ("Overview", "NCCL", "Ranks"),
    "healthy": ("Overview",),
    "link-counters": ("NCCL", "Links"),
    "peer-copies": ("Links", "Overlap"),
    "training": ("What if",),
    "twenty_ranks": ("Overview", "Steps", "Overlap", "NCCL", "Launch queue", "Links", "Ranks"),
    "four_machines": ("Overview", "Timeline", "Steps", "Ranks"),
}
"""Pages of samples, and of runs by their fixture: each where it shows most."""


@pytest.mark.all_samples
@pytest.mark.parametrize(
    ("of_sample", "title"),
    [(sample, title) for sample, titles in OF_SAMPLES.items() for title in titles],
    indirect=["of_sample"],
)
def test_what_is_shown(of_sample: Analysis, title: str, kept_text: KeptText) -> None:
    kept_text("\n".join(lines_of(DRAWN[title](of_sample))))
