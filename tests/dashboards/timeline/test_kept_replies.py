"""What the server replies to the timeline about samples is kept as text."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest

from dashboards.timeline.search import ORDERS
from tests.support.dashboard import asking
from tests.support.kept_claims import KeptText
from tests.support.pages import fields_of, value_of
from traceprof.analysis import Analysis


class Asked(NamedTuple):
    """What is asked of the timeline of a run, of its first rank."""

    ask: Callable[..., Any]  # notes a question and its reply, and returns the reply
    rows: dict[str, dict[str, Any]]  # by key
    whole: dict[str, int]  # start and end of all events
    few: dict[str, int]  # of a quarter of a step


def rows(asked: Asked) -> None:
    asked.ask("rank", rank=0)
    asked.ask("rank", rank=1, part="gpu")
    asked.ask("steps", rank=0)
    asked.ask("spreads")


def tiles(asked: Asked) -> None:
    keys = ",".join(asked.rows)
    for times, columns in ((asked.whole, 6), (asked.few, 300)):
        asked.ask("tiles", rows=keys, **times, columns=columns)
        asked.ask("strips", rank=0, **times, columns=columns // 6)
        asked.ask("hits", text="a", **times, columns=columns)
    asked.ask("area", rows=keys, **asked.few)
    for key in asked.rows:
        asked.ask("block", row=key, **asked.whole)


def events(asked: Asked) -> None:
    for key, row in asked.rows.items():
        listed = asked.ask("events", rows=key, **asked.few)["events"]
        for event in listed[len(listed) // 2 :][:1]:
            asked.ask("event", id=event["id"])
            for route, way in product(("neighbour", "namesake"), ("next", "previous")):
                asked.ask(route, id=event["id"], direction=way)
            if row["kind"] == "communication":
                asked.ask("collective", id=event["id"])


SEARCHES = ("AllReduce", "kind:copy > 2 us", "rank:0 step", "bytes=184549376", "stream:20 < 40 us")


def search(asked: Asked) -> None:
    for text, way in product(SEARCHES, ("next", "previous")):
        asked.ask("search", text=text, at=asked.few["start"], direction=way)
    for order in ORDERS:
        text = "kind:communication kind:copy kind:mark"
        asked.ask("matches", text=text, order=order, most=3)


def paths(asked: Asked) -> None:
    for steps in ("1", "1-2", "all"):
        asked.ask("path", step=steps)


OF_SAMPLES = {
    "ddp": (rows, tiles, events, search, paths),
    "gloo": (rows,),
    "link-counters": (rows, tiles),
    "busy-python": (tiles, events),
    "host-stall": (tiles, events),
    "marks": (rows, tiles, events, search),
    "training": (search,),
    "four_machines": (rows, events),
}
"""What is asked about samples, and about a run by its fixture: each where it shows most."""


@pytest.mark.all_samples
@pytest.mark.parametrize(
    ("of_sample", "questions"),
    [(sample, questions) for sample, all_ in OF_SAMPLES.items() for questions in all_],
    indirect=["of_sample"],
)
def test_what_is_replied(
    of_sample: Analysis, questions: Callable[[Asked], None], kept_text: KeptText
) -> None:
    lines: list[str] = []
    reply = asking(of_sample)

    def ask(route: str, **asked: object) -> Any:
        said = reply(route, **asked)
        lines.extend([f"## {route} {value_of(asked)}", *fields_of(said)])
        return said

    rank, steps = reply("rank", rank=0), reply("steps", rank=0)["steps"]
    start = int(steps[len(steps) // 2]["start"])
    few = {"start": start, "end": start + steps[0]["length"] // 4}
    whole = {"start": rank["start"], "end": rank["end"]}
    questions(Asked(ask, {row["row"]: row for row in rank["rows"]}, whole, few))
    kept_text("\n".join(lines))
