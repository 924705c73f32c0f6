"""What is said of programs that tests build is kept as text.

Its difference is what a change does to findings.
"""

import pytest

from tests.support.kept_claims import Kept, KeptText, claim_text


@pytest.fixture
def kept(kept_text: KeptText) -> Kept:
    """Return a function that compares claims, records or lines with what is kept of the test."""
    return lambda claims: kept_text("\n".join(map(claim_text, claims)) or "nothing")
