"""What the pages of the dashboard show, as text: `python -m tests.support.pages` keeps it.

A change of a page is a difference of these files, which a reader can judge.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import groupby, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from weakref import finalize

from dash import html
from dash.development.base_component import Component

from dashboards import shell
from dashboards.address import Address
from dashboards.pages import compare, query, what_if
from dashboards.pages.query import EXAMPLES
from dashboards.pages.registry import PAGES, Page
from dashboards.queries import answer
from dashboards.questions import CompareQuestion, PendingAnswer, compared_with
from dashboards.server.app import _page
from dashboards.timeline.search import ORDERS
from dashboards.view import View
from dashboards.widgets.charts import shortened
from sample_traces.simulator import simulate_ddp, simulate_run
from tests.support.dashboard import asking
from tests.support.traces import SAMPLE_FOLDER, analysis_of
from traceprof.analysis import FINDING_IDS, Analysis, Options, analyze
from traceprof.replay.whatif import answers_to
from traceprof.version import __version__

KEPT = Path(__file__).parents[1] / "dashboards" / "kept"
_MAX_VALUES = 12  # of a list of numbers, that are written one by one
_MAX_LISTED = 12  # that have a line of their own in a chart or an answer
_INLINE = {"Span", "Strong", "Code", "Small", "Link", "A", "Button", "Label", "Img"}
_MARKS = {"H1": "", "H2": "## ", "H3": "### ", "H4": "#### ", "Li": "- "}


def _page_of(module: Page, analysis: Analysis) -> list[str]:
    return _lines(_page(View(analysis, Address(module.PATH))))


def _chosen(module: Page, analysis: Analysis) -> list[str]:
    """Return a page of one rank and the time of two of its steps."""
    first, last = (analysis.result.breakdown[1].steps[at].measures for at in (1, 2))
    chosen: dict[str, Any] = {"start_ns": first.window_start_ns, "end_ns": last.window_end_ns}
    return _lines(_page(View(analysis, Address(module.PATH, rank=(1,), **chosen))))


def _bar(analysis: Analysis) -> list[str]:
    """Return the bar above all pages, with nothing and with a time chosen."""
    step = analysis.result.breakdown[0].steps[1].measures
    end: dict[str, Any] = {"start_ns": step.window_start_ns, "end_ns": step.window_end_ns}
    addresses = (Address(), Address("/steps", (1,), **end), Address("/timeline", end_ns=5))
    pages = [(page.PATH, page.TITLE) for page in PAGES]
    bars = [
        html.P([*shell.menu(pages, address), *shell.time(View(analysis, address))])
        for address in addresses
    ]
    reading = shell.shell(is_ready=False, has_scope=False)
    return _lines([shell.shell(is_ready=True), reading, *bars])


def _what_if(analysis: Analysis) -> list[str]:
    return _lines(what_if.drawn(PendingAnswer(answers_to(analysis, ()), is_over=True)))


def _compare(analysis: Analysis) -> list[str]:
    question = CompareQuestion((str(SAMPLE_FOLDER / "training.sqlite"),), Options())
    compared = compared_with(analysis, question)
    return _lines(compare.drawn(PendingAnswer(compared, is_over=True)))


def _query(analysis: Analysis) -> list[str]:
    sql = EXAMPLES["the parts of each step"]
    result = PendingAnswer(answer(analysis, sql), is_over=True)
    return _lines(query.drawn(result, View(analysis, Address(query.PATH, sql=sql))))


class _Asked(NamedTuple):
    """What is asked of the timeline of a run, of its first rank."""

    ask: Callable[..., Any]  # notes a question and its answer, and returns the answer
    rows: dict[str, dict[str, Any]]  # by key
    whole: dict[str, int]  # start and end of all events
    few: dict[str, int]  # of a quarter of a step


def _asked(questions: Callable[[_Asked], None], analysis: Analysis) -> list[str]:
    lines: list[str] = []
    reply = asking(analysis)

    def ask(route: str, **asked: object) -> Any:
        while (said := reply(route, **asked)).get("state") == "asked":
            time.sleep(0.05)
        lines.extend([f"## {route} {_value(asked)}", *_fields(said)])
        return said

    rank, steps = reply("rank", rank=0), reply("steps", rank=0)["steps"]
    start = int(steps[len(steps) // 2]["start"])
    few = {"start": start, "end": start + steps[0]["length"] // 4}
    whole = {"start": rank["start"], "end": rank["end"]}
    questions(_Asked(ask, {row["row"]: row for row in rank["rows"]}, whole, few))
    return lines


def _rows(asked: _Asked) -> None:
    asked.ask("rank", rank=0)
    asked.ask("rank", rank=1, part="gpu")
    asked.ask("steps", rank=0)
    asked.ask("spreads")


def _tiles(asked: _Asked) -> None:
    keys = ",".join(asked.rows)
    for times, columns in ((asked.whole, 6), (asked.few, 300)):
        asked.ask("tiles", rows=keys, **times, columns=columns)
        asked.ask("strips", rank=0, **times, columns=columns // 6)
        asked.ask("hits", text="a", **times, columns=columns)
    asked.ask("area", rows=keys, **asked.few)
    for key in asked.rows:
        asked.ask("block", row=key, **asked.whole)


def _events(asked: _Asked) -> None:
    for key, row in asked.rows.items():
        events = asked.ask("events", rows=key, **asked.few)["events"]
        for event in events[len(events) // 2 :][:1]:
            asked.ask("event", id=event["id"])
            for route, way in product(("neighbour", "namesake"), ("next", "previous")):
                asked.ask(route, id=event["id"], direction=way)
            if row["kind"] == "communication":
                asked.ask("collective", id=event["id"])


_SEARCHES = ("AllReduce", "kind:copy > 2 us", "rank:0 step", "bytes=184549376", "stream:20 < 40 us")


def _search(asked: _Asked) -> None:
    for text, way in product(_SEARCHES, ("next", "previous")):
        asked.ask("search", text=text, at=asked.few["start"], direction=way)
    for order in ORDERS:
        text = "kind:communication kind:copy kind:mark"
        asked.ask("matches", text=text, order=order, most=3)


def _paths(asked: _Asked) -> None:
    for steps in ("1", "1-2", "all"):
        asked.ask("path", step=steps)


SECTIONS: dict[str, Callable[[Analysis], list[str]]] = {
    **{page.TITLE: partial(_page_of, page) for page in PAGES},
    **{f"{page.TITLE} of two steps of a rank": partial(_chosen, page) for page in PAGES},
    "Bar": _bar,
    what_if.TITLE: _what_if,
    compare.TITLE: _compare,
    query.TITLE: _query,
    "Rows": partial(_asked, _rows),
    "Tiles": partial(_asked, _tiles),
    "Events": partial(_asked, _events),
    "Search": partial(_asked, _search),
    "Critical path": partial(_asked, _paths),
}
"""What is kept, by title: pages, and answers to the timeline."""
_ALL = ("Overview", "Timeline", "Steps", "Kernels", "Overlap", "NCCL", "Links", "Ranks")
_CHOSEN = ("Overview", "Timeline", "Steps", "Kernels", "NCCL", "Launch queue", "Links", "Ranks")
_SIMULATED: dict[str, Callable[[Path], object]] = {
    "ddp-of-20-ranks": lambda folder: simulate_ddp(
        folder / "ddp.sqlite", gpus=20, steps=4, kernels_per_step=20, seed=3
    ),
    "straggler-on-4-machines": lambda folder: simulate_run(
        "straggler-slow-kernels", folder, seed=1
    ),
}
OF_SAMPLES = {
    "ddp": ("Bar", *_ALL, "Query", "Rows", "Tiles", "Events", "Search", "Critical path"),
    "gloo": (*_ALL, "Launch queue", "What if", "Rows"),
    "mpi-wait": _ALL,
    "uneven-clock": (*_ALL, *(f"{title} of two steps of a rank" for title in _CHOSEN)),
    "launch-queue-stall": ("Overview", "Steps", "NCCL", "Launch queue", "Ranks"),
    "overlap-slowdown": ("Steps", "Kernels", "Overlap", "NCCL", "What if", "Compare"),
    "nccl-serialization": ("Overview", "NCCL", "Ranks"),
    "healthy": ("Overview",),
    "link-counters": ("NCCL", "Links", "Rows", "Tiles"),
    "peer-copies": ("Links", "Overlap"),
    "busy-python": ("Tiles", "Events"),
    "host-stall": ("Tiles", "Events"),
    "marks": ("Rows", "Tiles", "Events", "Search"),
    "training": ("Search", "What if"),
    "ddp-of-20-ranks": (
        *("Overview", "Steps", "Overlap", "NCCL", "Launch queue", "Links", "Ranks"),
    ),
    "straggler-on-4-machines": ("Overview", "Timeline", "Steps", "Ranks", "Rows", "Events"),
}
"""Titles of what is kept of samples: each where it shows most."""


@cache
def _simulated(name: str) -> Analysis:
    """Return the analysis of a run that is no sample, with two kinds of findings."""
    folder = TemporaryDirectory()
    _SIMULATED[name](Path(folder.name))
    others = {*FINDING_IDS} - {"exposed-communication", "straggler"}
    reports = sorted(Path(folder.name).glob("*.sqlite"))
    analysis = analyze(*reports, options=Options(skip=sorted(others)))
    finalize(analysis, folder.cleanup)
    return analysis


def shown(sample: str, title: str) -> str:
    """Return what a page shows of a sample, or what the server answers."""
    if sample in _SIMULATED:
        text = "\n".join(SECTIONS[title](_simulated(sample)))
    else:
        with analysis_of(SAMPLE_FOLDER / f"{sample}.sqlite") as analysis:
            text = "\n".join(SECTIONS[title](analysis))
    return text.replace(f"{SAMPLE_FOLDER}/", "").replace(__version__, "VERSION")


@cache
def kept(sample: str) -> dict[str, str]:
    """Return what is kept of a sample, by title."""
    text = (KEPT / f"{sample}.txt").read_text("utf-8")
    sections = (section.split("\n", 1) for section in text.removeprefix("# ").split("\n\n# "))
    return {title: lines.removesuffix("\n") for title, lines in sections}


def _children(component: Any) -> list[Any]:
    children = getattr(component, "children", None)
    return [*children] if isinstance(children, (list, tuple)) else [children]


def _is_inline(child: Any) -> bool:
    return not isinstance(child, Component) or (
        type(child).__name__ in _INLINE and all(map(_is_inline, _children(child)))
    )


def _inline(child: Any) -> str:
    """Return a text with its links, tooltips and places of bars."""
    if not isinstance(child, Component):
        return "" if child is None else str(child)
    text = " ".join(filter(None, (_inline(one).strip() for one in _children(child))))
    href = getattr(child, "href", None)
    text = f"[{text}]({href})" if href else text
    style = getattr(child, "style", None) or {}
    extra = [f"{key} {style[key]}" for key in ("left", "width") if key in style]
    for key in ("title", "alt", "src", "data-src"):
        said = getattr(child, key, None)
        extra += [said] if said and said != text else []
    extra += ["hidden"] if getattr(child, "hidden", False) else []
    return f"{text}{{{'; '.join(extra)}}}" if extra else text


def _lines(tree: Any) -> list[str]:
    """Return the lines of components, each block with a line of its own."""
    lines: list[str] = []
    children = tree if isinstance(tree, (list, tuple)) else [tree]
    for is_inline, some in groupby(children, _is_inline):
        if is_inline:
            text = " ".join(filter(None, (_inline(child).strip() for child in some)))
            lines += [text] if text else []
        else:
            lines += [line for child in some for line in _block(child)]
    return lines


def _block(child: Any) -> list[str]:
    if hasattr(child, "data-plots"):
        drawn = json.loads(getattr(child, "data-plots"))
        return [f"chart {child.id}: {getattr(child, 'data-label')}", *_indented(_fields(drawn))]
    kind, name = type(child).__name__, getattr(child, "id", "") or getattr(child, "className", "")
    first = type(next(iter(_children(child)), None)).__name__
    write = _BLOCKS.get(first if first == "Dt" else kind) or _BLOCKS.get(str(name))
    if write is not None:
        return write(child)
    lines = _lines(_children(child))
    return [*(_MARKS.get(kind, "") + line for line in lines[:1]), *lines[1:], *_own(child)]


def _joined(between: str) -> Callable[[Any], list[str]]:
    """Return a writer of a block with all its parts in one line."""

    def write(child: Any) -> list[str]:
        parts = (" ".join(_lines([part])).removeprefix("- ") for part in _children(child))
        return [between.join(parts).rstrip()]

    return write


def _details(child: Any) -> list[str]:
    lines = _lines(_children(child))
    return [("v " if child.open else "> ") + lines[0], *_indented(lines[1:])]


def _timeline(child: Any) -> list[str]:
    props = sorted(child.to_plotly_json()["props"].items())
    written = {key: value for key, value in props if key.startswith("data-")}
    return _fields({key: json.loads(v) if v[:1] in "[{" else v for key, v in written.items()})


def _own(child: Component) -> list[str]:
    """Return what a field of a form holds."""
    fields = [key for key in ("options", "value", "placeholder") if hasattr(child, key)]
    fields += ["hidden"] if getattr(child, "hidden", False) else []
    return [f"{key}: {_value(getattr(child, key))}" for key in fields]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _grid(grid: Any) -> list[str]:
    """Return a table: columns with a filter have a *, those that are saved only, brackets."""
    columns = grid.columnDefs
    is_scrolled = grid.style["height"] is not None
    heads = [
        f"({one['headerName']})" if one.get("hide") else one["headerName"] + "*" * ("filter" in one)
        for one in columns
    ]
    rows = [" | ".join(_cell(one, row) for one in columns) for row in grid.rowData]
    name = f"{grid.id['name']}{' (scrolled)' * is_scrolled}"
    return [f"table {name}: {' | '.join(heads)}", *_indented(rows)]


def _cell(column: dict[str, Any], row: dict[str, Any]) -> str:
    value = row.get(column["field"])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        divided = re.search(r"/ (\S+)$", column.get("valueGetter", {}).get("function", ""))
        rounded = re.search(r"\.(\d)f", column.get("valueFormatter", {}).get("function", ""))
        value = value / float(divided[1]) if divided else value
        value = f"{value:,.{rounded[1]}f}" if rounded else value
    text = "–" if value is None else str(value)  # noqa: RUF001
    is_link = column.get("cellRenderer") == "Place" and row.get("href")
    return f"[{text}]({row['href']})" if is_link else text


_BLOCKS = {
    "AgGrid": _grid,
    "Details": _details,
    **dict.fromkeys(("timeline", "compare-timelines"), _timeline),
    **dict.fromkeys(("bar", "legend"), _joined(" ")),
    **dict.fromkeys(("Summary", "Header"), _joined(" · ")),
    "Tr": _joined(" | "),
    "Dt": _joined(": "),
}
"""Writers of components by kind, id or class; others are written part by part."""


def _fields(data: dict[str, Any]) -> list[str]:
    """Return each field of a chart or an answer; what it lists has a line each."""
    lines: list[str] = []
    for key, value in data.items():
        listed = list(value.items()) if isinstance(value, dict) else value
        if isinstance(listed, list) and listed and isinstance(listed[0], (dict, tuple)):
            rest = [f"… {len(listed)} in all"] if len(listed) > _MAX_LISTED else []
            lines += [f"{key}:", *_indented([*map(_value, listed[:_MAX_LISTED]), *rest])]
        else:
            lines.append(f"{key}: {_value(value)}")
    return lines


def _value(value: Any) -> str:
    """Return a value of a chart; of many numbers the first ones, their extremes and mean."""
    match value:
        case Component():
            text = _inline(value)
        case float():
            text = f"{value:.6g}"
        case dict():
            text = ", ".join(f"{key}={_value(one)}" for key, one in value.items())
        case tuple():
            text = ": ".join(map(_value, value))
        case [int() | float() | None, *_] if len(value) > _MAX_VALUES:
            known = [one for one in value if one is not None]
            ends = f"{_value(min(known))} to {_value(max(known))}"
            first = " ".join(map(_value, value[: _MAX_VALUES // 2]))
            gaps, mean = len(value) - len(known), _value(sum(known) / len(known))
            text = f"[{first} … {len(value)}, {gaps} unknown: {ends}, mean {mean}]"
        case list():
            text = f"[{' '.join(map(_value, value))}]"
        case _:
            text = shortened(str(value), 100)
    return text


if __name__ == "__main__":
    for name, titles in OF_SAMPLES.items():
        sections = (f"# {title}\n{shown(name, title)}\n" for title in titles)
        (KEPT / f"{name}.txt").write_text("\n".join(sections), encoding="utf-8")
