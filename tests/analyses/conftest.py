"""What is claimed of programs that tests build is kept as text: `pytest -n 0 --keep` writes it.

Its difference is what a change does to findings.
"""

from pathlib import Path
from textwrap import indent

import pytest

from tests.support.kept_claims import Claims, Kept, claim_text, kept_texts


@pytest.fixture
def kept(request: pytest.FixtureRequest) -> Kept:
    """Return a function that holds claims to those that are kept of the test."""
    path: Path = request.path.with_suffix(".txt")
    name: str = request.node.name

    def compare(claims: Claims) -> None:
        said = "\n".join(map(claim_text, claims)) or "nothing"
        texts = kept_texts(path) if path.exists() else {}
        if request.config.option.keep:
            texts[name] = said
            sections = (f"{name}\n\n{indent(texts[name], '    ')}\n" for name in sorted(texts))
            path.write_text("\n".join(sections), encoding="utf-8")
        assert said == texts.get(name)

    return compare
