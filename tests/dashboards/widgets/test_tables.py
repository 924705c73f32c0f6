"""Columns of tables, as AG Grid takes them."""

from __future__ import annotations

import pytest

from dashboards.widgets.tables import IDENTIFIER, Column


@pytest.mark.parametrize(
    ("decimals", "value", "shown"),
    [(0, 36_515_281_024, "36,515,281,024"), (3, 12_345_678.9, "12,345,678.900"),
     (IDENTIFIER, 281_479_288_520_704, "281479288520704"), (0, None, "?")],
)  # fmt: skip
def test_no_number_is_cut(decimals: int, value: float | None, shown: str) -> None:
    column = Column("size", "size", decimals, 60)
    width = column.definition([{"size": 1}, {"size": value}, {}])["minWidth"]
    assert width >= max(60, 8 * len(shown) + 32)  # of a cell, 16 pixels stay free on either side


def test_a_column_without_rows_is_as_wide_as_its_head_needs() -> None:
    assert Column("a", "communication", 0, 10).definition()["minWidth"] > 100
