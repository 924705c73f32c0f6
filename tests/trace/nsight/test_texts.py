"""Many texts in one piece of memory."""

import pytest

from traceprof.trace.model.ranges import Texts

TEXTS = ["one", "", "zwölf", "🚀", "last"]


def test_texts_are_as_in_a_list() -> None:
    texts = Texts(text.encode() for text in TEXTS)
    assert list(texts) == TEXTS
    assert [texts[index] for index in range(-5, 5)] == TEXTS + TEXTS
    assert texts[1:4] == TEXTS[1:4]
    assert len(texts) == len(TEXTS)


def test_there_is_nothing_beyond() -> None:
    with pytest.raises(IndexError):
        Texts([b"a"])[1]
    with pytest.raises(IndexError):
        Texts([])[0]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert Texts([b"\xff", b"a\xc3"])[:] == ["�", "a�"]
