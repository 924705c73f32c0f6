"""Requests to the dashboard of a damaged report: each is answered or refused, none fails."""

import logging
import random
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import urlencode

from dashboards.address import Address
from dashboards.pages.registry import PAGES
from dashboards.server.app import create_app
from dashboards.timeline.events import SOURCES
from dashboards.view import View
from traceprof.analysis import analyze

_BEYOND = 4_611_686_018_427_387_904
_NUMBERS = ("0", "1", "2", "-1", "7", "1000", "1000000", "100000000", str(_BEYOND), 20 * "9")
_EVENTS = [f"{rank}.{source}.{at}" for rank in (0, 1) for source in SOURCES for at in (0, 1, 9)]
_PARAMETERS = {
    "rank": _NUMBERS[:5],
    "rows": ("0.0", "0.1,0.2", "0.0,0.1,0.2,0.3,0.4,0.5,0.6,0.7", "1.0", "0.99", "x"),
    "row": ("0.0", "0.1", "0.2", "0.99"),
    "start": _NUMBERS,
    "end": _NUMBERS[::-1],
    "columns": ("1", "100", "8192", "0"),
    "id": (*_EVENTS, "x", "0.x.-1"),
    "from": (*_EVENTS, "x"),
    "direction": ("next", "previous", ""),
    "text": ("gemm", "nccl", "(", "cuda", "\0", "e" * 300),
    "part": ("gpu", "host", "x"),
    "step": _NUMBERS,
}


def chosen_requests(chosen: random.Random) -> list[str]:
    """Return some questions: `PAGES` for all pages, and names of replies with parameters."""
    questions = ["PAGES"] if chosen.random() < 0.5 else []
    for _ in range(chosen.choice((1, 5, 20))):
        names = [name for name in _PARAMETERS if chosen.random() < 0.9]
        values = {name: chosen.choice(_PARAMETERS[name]) for name in names}
        questions.append(f"{chosen.random()} {urlencode(values)}")
    return questions


def answered(report: str, questions: Sequence[str]) -> None:
    """Ask the dashboard of a report.

    Args:
        report: its path.
        questions: of `chosen_requests`.

    Raises:
        TraceprofError: the report is refused.
        AssertionError: a request failed.
    """
    logging.getLogger("traceprof").setLevel(logging.CRITICAL)  # refused requests
    with closing(analyze(report)) as analysis:
        server = create_app(analysis).server
        server.config["PROPAGATE_EXCEPTIONS"] = True
        rules = sorted(
            rule.rule
            for rule in server.url_map.iter_rules()
            if not rule.arguments and "GET" in (rule.methods or ()) and "-before" not in rule.rule
        )
        client = server.test_client()
        for question in questions:
            if question == "PAGES":
                for page in PAGES:
                    page.layout(View(analysis, Address(page.PATH)))
                continue
            place, _, query = question.partition(" ")
            path = rules[int(float(place) * len(rules))]
            status = client.get(f"{path}?{query}").status_code
            assert status < 500, f"{path}?{query}: {status}"
