"""The pages of the dashboard, in the order of the menu: one more is its module and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dashboards.pages import (
    compare,
    kernels,
    launch_queue,
    links,
    nccl,
    overlap,
    overview,
    query,
    ranks,
    steps,
    timeline,
    what_if,
)
from dashboards.view import View
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from dash.development.base_component import Component


class Page(Protocol):
    """The shape of every module of a page."""

    PATH: str  # its path in an address
    TITLE: str  # its name in the menu

    def layout(self, view: View) -> Component:
        """Return what the page shows of a view.

        Raises:
            UsageError: the address names something that the analysis does not have.
        """


PAGES: tuple[Page, ...] = (
    overview,
    timeline,
    steps,
    kernels,
    overlap,
    nccl,
    launch_queue,
    links,
    ranks,
    what_if,
    compare,
    query,
)


def page_at(path: str) -> Page:
    """Return the page with a path such as `/timeline`.

    Raises:
        UsageError: there is none.
    """
    for page in PAGES:
        if path == page.PATH:
            return page
    raise UsageError("cannot show this address", f"there is no page {path!r}", "use the menu")
