"""The first page is light: all text comes compressed, and is compressed once."""

import gzip
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Browser

from dashboards.server.app import assets_path, create_app
from tests.support.traces import SAMPLE, analysis_of


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with analysis_of(SAMPLE) as analysis:
        yield create_app(analysis).server.test_client()


def test_programs_and_styles_are_compressed_once(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed: list[int] = []
    real = gzip.compress

    def count(data: bytes, level: int, *, mtime: int) -> bytes:
        compressed.append(len(data))
        return real(data, level, mtime=mtime)

    monkeypatch.setattr(gzip, "compress", count)
    folder = f"/{assets_path()}/"
    for path in (f"{folder}main.js", f"{folder}timeline/timeline.js", f"{folder}style.css"):
        with client.get(path) as reply:
            assert "Content-Encoding" not in reply.headers
            plain = reply.get_data()
        for _ in range(2):
            with client.get(path, headers={"Accept-Encoding": "gzip, br"}) as reply:
                is_small = len(plain) < 1000
                assert reply.headers.get("Content-Encoding") == (None if is_small else "gzip")
                assert "Accept-Encoding" in reply.headers["Vary"]
                sent = reply.get_data()
                assert int(reply.headers["Content-Length"]) == len(sent)
                assert (sent if is_small else gzip.decompress(sent)) == plain
    assert len(compressed) == len(set(compressed)) >= 2


def test_the_first_page_takes_less_than_a_megabyte(browser: Browser, sample_url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    sizes: list[float] = []
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.loadingFinished", lambda done: sizes.append(done["encodedDataLength"]))
    page.goto(sample_url)
    page.locator("#finding-gpu-idle").wait_for()
    context.close()
    assert len(sizes) > 20
    assert sum(sizes) < 1_000_000
