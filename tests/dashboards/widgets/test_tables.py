"""Columns of tables, as AG Grid takes them."""

import pytest

from dashboards.widgets.tables import IDENTIFIER, Column, table
from tests.support.dashboard import named


@pytest.mark.parametrize(
    ("decimals", "value", "shown"),
    [(0, 36_515_281_024, "36,515,281,024"), (3, 12_345_678.9, "12,345,678.900"),
     (IDENTIFIER, 281_479_288_520_704, "281479288520704"), (0, None, "?")],
)  # fmt: skip
def test_no_number_is_cut(decimals: int, value: float | None, shown: str) -> None:
    column = Column("size", "size", decimals, 60)
    width = column.definition([{"size": 1}, {"size": value}, {}])["minWidth"]
    assert width >= max(60, 8 * len(shown) + 32)  # of a cell, 16 pixels stay free on either side


def test_identifiers_are_not_cut() -> None:
    identifier = "0x5eed000000000012"
    column = Column("communicator", "communicator", None, 170)
    width = column.definition([{"communicator": identifier}])["minWidth"]
    assert width >= 8 * 14 + 7 * 4 + 32  # digits are wider than small letters


def test_names_are_cut_before_a_table_leaves_a_small_window() -> None:
    columns = [
        Column("name", "name", None, 150, may_be_cut=True),
        *(Column(f"n{number}", "number", 0, 90) for number in range(8)),
    ]
    row = {"name": "x" * 40, **{f"n{number}": 10**8 for number in range(8)}}
    (grid,) = named(table("t", columns, [row]), "AgGrid")
    widths = [definition["minWidth"] for definition in grid.columnDefs]
    assert sum(widths) <= 1204
    assert widths[0] >= 120
    assert widths[1:] == [column.least_width([row]) for column in columns[1:]]


def test_a_column_without_rows_is_as_wide_as_its_head_needs() -> None:
    assert Column("a", "communication", 0, 10).definition()["minWidth"] > 100


def test_without_a_column_to_filter_there_is_no_row_of_filters() -> None:
    columns = [Column("rank", "rank", IDENTIFIER, 70), Column("holder", "mostly filled by")]
    for rows, has_filter in (([{"rank": 0, "holder": "copy"}], True), ([{"rank": 0}], False)):
        (grid,) = named(table("t", columns, rows), "AgGrid")
        assert any("floatingFilter" in column for column in grid.columnDefs) is has_filter
