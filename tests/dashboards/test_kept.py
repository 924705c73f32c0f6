"""What pages and the timeline show of samples, against what is kept in `kept`."""

import pytest

from tests.support.pages import OF_SAMPLES, kept, shown


@pytest.mark.all_samples
@pytest.mark.parametrize(
    ("sample", "title"), [(sample, title) for sample, all_ in OF_SAMPLES.items() for title in all_]
)
def test_what_is_shown_is_as_kept(sample: str, title: str) -> None:
    """`make sample` writes the texts; their difference is what a change does to pages."""
    assert shown(sample, title) == kept(sample)[title]
