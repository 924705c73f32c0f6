"""The grammar of ranges: what is written is read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof import labels
from traceprof.labels import Label, parse_steps

WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.", min_size=1)


@pytest.mark.parametrize(
    ("text", "operation", "facts"),
    [
        ("step 12", "step 12", {}),
        ("forward", "forward", {}),
        (
            "send dst=2 bytes=67108864 group=pp",
            "send",
            {"dst": "2", "bytes": "67108864", "group": "pp"},
        ),
        ("to h2d bytes=4096 pinned=1", "to h2d", {"bytes": "4096", "pinned": "1"}),
        ("", "", {}),
        ("=x", "=x", {}),
    ],
)
def test_labels_of_the_design(text: str, operation: str, facts: dict[str, str]) -> None:
    label = labels.parse(text)
    assert (label.operation, label.facts) == (operation, facts)
    assert str(label) == text


@given(st.lists(WORD, min_size=1).map(" ".join), st.dictionaries(WORD, WORD))
def test_round_trip(operation: str, facts: dict[str, str]) -> None:
    label = Label(operation, facts)
    assert labels.parse(str(label)) == label


def test_a_step() -> None:
    assert labels.step(7) == "step 7"


@pytest.mark.parametrize(
    ("text", "steps"), [("10:20", (10, 20)), ("5:", (5, None)), (":3", (0, 3)), (" 0 : 1 ", (0, 1))]
)
def test_ranges_of_steps(text: str, steps: tuple[int, int | None]) -> None:
    assert parse_steps(text) == steps
    assert parse_steps(str(parse_steps(text))) == steps


@pytest.mark.parametrize("text", ["", "5", ":", "3:3", "4:2", "-1:2", "a:b", "1:2:3", "1.5:2"])
def test_what_is_no_range_of_steps(text: str) -> None:
    with pytest.raises(ValueError, match="step"):
        parse_steps(text)
