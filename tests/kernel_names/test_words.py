"""Words without which no name of a row matches: they must not hide a name from its expression."""

import re
import sys
from collections.abc import Iterable
from importlib import import_module
from itertools import product
from typing import Any

import pytest

from tests.kernel_names.test_categories import NAMES
from traceprof.kernel_names import PATTERNS, WORDS, CommunicationPatterns, function_name
from traceprof.kernel_names.categories import _GENERIC, CATEGORIES, CategoryRow, kernel_kind
from traceprof.patterns import has_any

_PARSER = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


def shortest_texts(parsed: Iterable[tuple[Any, Any]]) -> set[str]:
    """Return the texts of an expression: each alternative, what may be left out with and without.

    What is repeated stands once more often than it must. Of a class of characters there is each
    that is named, and the first of each range; 9 stands for any other.
    """
    parts = [_parts(str(kind).lower(), value) for kind, value in parsed]
    return {"".join(text) for text in product(*parts)}


def _parts(kind: str, value: Any) -> set[str]:
    if kind in {"any", "not_literal", "category", "negate"}:
        texts = {"9"}
    elif kind in {"literal", "range"}:
        texts = {chr(value if kind == "literal" else value[0])}
    elif kind == "in":
        texts = {text for item in value for text in _parts(str(item[0]).lower(), item[1])}
    elif kind == "branch":
        texts = {text for item in value[1] for text in shortest_texts(item)}
    elif kind == "subpattern":
        texts = shortest_texts(value[3])
    elif kind in {"max_repeat", "min_repeat"}:
        least, most, item = value
        of_item = shortest_texts(item)
        counts = {least, min(least + 1, int(most))}
        texts = {"".join(text) for count in counts for text in product(of_item, repeat=count)}
    else:
        assert kind in {"at", "assert", "assert_not"}, kind
        texts = {""}
    return texts


def test_texts_of_an_expression() -> None:
    parsed = _PARSER.parse(r"^(?:ab|[cd])_?e+(?!x).*")
    assert shortest_texts(parsed) == {
        f"{start}{middle}{end}{rest}"
        for start in ("ab", "c", "d")
        for middle in ("", "_")
        for end in ("e", "ee")
        for rest in ("", "9")
    }


@pytest.mark.parametrize("row", CATEGORIES, ids=lambda row: row.expression.pattern)
def test_each_name_of_a_category_has_a_word(row: CategoryRow) -> None:
    texts = shortest_texts(_PARSER.parse(row.expression.pattern))
    assert texts
    assert [text for text in texts if not has_any(row.words, text.casefold())] == []


def test_each_name_of_a_communication_kernel_has_a_word() -> None:
    for pattern in PATTERNS:
        texts = shortest_texts(_PARSER.parse(pattern.expression.pattern))
        assert any(pattern.expression.fullmatch(text) for text in texts)
        assert [text for text in texts if not has_any(WORDS, text.casefold())] == []


@pytest.mark.parametrize("name", NAMES)
def test_words_change_no_result(name: str) -> None:
    """The first row whose expression matches, whatever its words, is the one that counts."""
    function = function_name(name)
    is_generic = _GENERIC.search(function) is not None
    searched = [
        (row, function if row.functions is None else name)
        for row in CATEGORIES
        if row.functions is None or is_generic
    ]
    first = next((row for row, text in searched if row.expression.search(text)), None)
    operations = [one for one in PATTERNS if one.expression.fullmatch(function)]
    if CommunicationPatterns().operation(name) is None:
        assert operations == []
        assert kernel_kind(name).is_known == (first is not None)
        assert first is None or kernel_kind(name).category is first.category
    else:
        assert operations != []


def test_most_expressions_are_not_compiled() -> None:
    rows = [
        row for row in CATEGORIES if has_any(row.words, "at::native::vectorized_elementwise_kernel")
    ]
    assert len(rows) <= len(CATEGORIES) // 8
    assert not has_any(WORDS, "at::native::reduce_kernel")
    assert all(re.fullmatch(r"[a-z0-9_:]+", word) for word in WORDS)
