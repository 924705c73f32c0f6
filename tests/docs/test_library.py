"""The examples of docs/library.md give what the page shows."""

import doctest
import re
from pathlib import Path

import pytest

import traceprof
from tests.support.claims import private_names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "library.md"
_EXAMPLES = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_examples_give_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = PAGE.read_text(encoding="utf-8")
    # Blank lines stand for what lies between the examples, so that line numbers are the page's.
    lines = [""] * len(text.splitlines())
    for block in _EXAMPLES.finditer(text):
        first = text.count("\n", 0, block.start(1))
        examples = block[1].splitlines()
        lines[first : first + len(examples)] = examples
    test = doctest.DocTestParser().get_doctest("\n".join(lines), {}, PAGE.name, str(PAGE), lineno=0)
    assert len(test.examples) > 10
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_every_public_name_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)", PAGE.read_text(encoding="utf-8")))
    assert set(traceprof.__all__) <= named


def test_examples_use_nothing_private() -> None:
    blocks = _EXAMPLES.findall(PAGE.read_text(encoding="utf-8"))
    examples = doctest.DocTestParser().get_examples("\n".join(blocks))
    assert len(examples) > 10
    for example in examples:
        assert [*private_names(example.source)] == [], example.source
