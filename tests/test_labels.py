"""The grammar of ranges: what is written is read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof import labels
from traceprof.labels import Label

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
