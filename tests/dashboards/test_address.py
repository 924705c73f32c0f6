"""Addresses: what is written is read back, and nothing else is read."""

from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.address import PARAMETERS, Address, parse
from dashboards.pages.registry import PAGES, page_at
from traceprof.analysis import FINDING_IDS
from traceprof.errors import UsageError

numbers = st.lists(st.integers(0, 2**61), unique=True, max_size=5).map(tuple)
rows = st.lists(
    st.builds("{}.{}".format, st.integers(0, 999), st.integers(0, 999)), min_size=1, max_size=5
).map(",".join)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def scopes(draw: st.DrawFn) -> dict[str, Any]:
    """Draw ranks, reports and times, which the reader chooses or a view shows."""
    times = st.integers(-(2**61), 2**61)
    start, end = sorted(draw(st.lists(times, min_size=2, max_size=2, unique=True)))
    return {
        "rank": draw(numbers),
        "report": draw(numbers),
        "start_ns": draw(st.sampled_from([None, start])),
        "end_ns": draw(st.sampled_from([None, end])),
    }


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    return Address(
        path=draw(st.sampled_from([page.PATH for page in PAGES])),
        **draw(scopes()),
        finding=draw(st.sampled_from([None, *FINDING_IDS])),
        evidence=draw(st.none() | st.integers(0, 9)),
        select=draw(st.none() | texts),
        search=draw(st.none() | texts),
        assume=draw(st.none() | texts),
        sql=draw(st.none() | texts),
        pinned=draw(st.none() | rows),
        hidden=draw(st.none() | rows),
        moved=draw(st.none() | rows),
        step_path=draw(st.sampled_from([None, "all", "0", "17"])),
        before=draw(st.sampled_from([None, "0", "3.12"])),
        after=draw(st.sampled_from([None, "1", "0.0"])),
        scope=draw(st.none() | scopes().map(lambda chosen: Address(**chosen))),
    )


@settings(max_examples=30)
@given(addresses())
def test_an_address_is_read_back_as_it_was_written(address: Address) -> None:
    url = urlsplit(address.href())
    assert parse(url.path, url.query) == address
    assert parse(url.path, f"?{url.query}") == address


@given(st.text(max_size=200))
def test_anything_else_is_an_address_or_an_error(query: str) -> None:
    try:
        address = parse("/timeline", query)
    except UsageError:
        return
    assert parse(*address.href().partition("?")[::2]) == address


@pytest.mark.parametrize(
    "query",
    [
        "rank=one", "rank=-1", "rank=1,,2", "rank=1_0", "rank=٣", "rank=" + "9" * 5000,
        "report=1.5", "start=1e9", "start=", "end=" + str(2**62), "start=5&end=5", "start=9&end=5",
        "finding=nothing", "finding=../../etc/passwd", "evidence=-1", "rank=1&rank=2", "path=/x",
        "__class__=1", "search=" + "x" * 4001, "scope=select%3Dx", "scope=rank%3D-1",
        "scope=start%3D5%26end%3D5", "scope=scope%3D", "scope=&scope=",
        "before=", "before=1.", "after=1.2.3", "after=-1", "after=1.x", "path=-1", "path=",
        "pinned=", "pinned=0", "hidden=0.1,", "moved=0.1;0.2", "moved=a.b",
        "pinned=" + ",".join(["0.1"] * 9999), "&".join(["rank=1"] * 99), "select=a" * 20_000,
    ],
)  # fmt: skip
def test_what_no_address_can_say_is_refused(query: str) -> None:
    with pytest.raises(UsageError, match="in the address"):
        parse("/timeline", query)


@pytest.mark.parametrize("path", ["", "/nowhere", "/timeline/", "//timeline", "/../timeline"])
def test_there_is_no_other_page(path: str) -> None:
    with pytest.raises(UsageError, match="there is no page"):
        page_at(path)


def test_every_page_has_a_path_and_a_name_of_its_own() -> None:
    assert len({page.PATH for page in PAGES}) == len({page.TITLE for page in PAGES}) == len(PAGES)
    assert [page_at(page.PATH) for page in PAGES] == [*PAGES]


def test_every_field_has_a_parameter() -> None:
    texts = {
        "path": "all", "scope": "", "finding": FINDING_IDS[0], "pinned": "0.1", "hidden": "0.1",
        "moved": "0.1", "end": "7", "list": "-step",
    }  # fmt: skip
    keys = [*PARAMETERS]
    query = "&".join(f"{key}={texts.get(key, '3')}" for key in keys)
    address = parse("/timeline", query)
    assert [pair.split("=")[0] for pair in urlsplit(address.href()).query.split("&")] == keys
    read = {field.name for field in fields(Address)} - {"path"}
    assert len(read) == len(keys)
    assert all(getattr(address, name) not in {None, ()} for name in read)


def test_another_page_keeps_what_was_chosen() -> None:
    address = parse("/steps", "rank=3,1&report=0&start=5&select=x")
    assert address.to("/links").href() == "/links?rank=3,1&report=0&start=5"
    assert address.to("/timeline", start_ns=7, end_ns=9).href() == (
        "/timeline?rank=3,1&report=0&start=7&end=9"
    )


def test_a_place_leaves_what_was_chosen_as_it_was() -> None:
    address = parse("/steps", "rank=3,1&start=5")
    place = address.to_place("/timeline", rank=(7,), start_ns=100, end_ns=200)
    assert place.href() == ("/timeline?rank=7&start=100&end=200&scope=rank%3D3,1%26start%3D5")
    again = parse(*place.href().split("?"))
    assert again.chosen == address.chosen
    assert again.to("/links").href() == "/links?rank=3,1&start=5"
    everything = parse("/", "").to_place("/timeline", rank=(7,))
    assert everything.href() == "/timeline?rank=7&scope="
    assert parse("/timeline", "rank=7&scope=").to("/steps").href() == "/steps"
