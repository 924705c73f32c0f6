"""What tests ask of a page in a browser, and do to it."""

from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import FloatRect, Locator, Page


def box_of(locator: Locator) -> FloatRect:
    """Return where on the page an element is, which has to be seen."""
    box = locator.bounding_box()
    assert box is not None
    return box


def drag(page: Page, first: tuple[float, float], last: tuple[float, float]) -> None:
    """Press the mouse at a place, and release it at another one."""
    page.mouse.move(*first)
    page.mouse.down()
    page.mouse.move(*last, steps=4)
    page.mouse.up()


def query(page: Page) -> dict[str, str]:
    """Return the parameters of the page's address."""
    parts = parse_qs(urlsplit(page.url).query, keep_blank_values=True)
    return {name: values[0] for name, values in parts.items()}
