"""Who may ask for what: hosts, tokens, paths, and calls that no page of ours makes."""

from __future__ import annotations

import http.client
import json
import logging
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards.server.access import Access
from dashboards.server.app import create_app
from tests.support.traces import SAMPLE
from traceprof.analysis import analyze

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dash import Dash
    from flask.testing import FlaskClient
    from werkzeug.test import TestResponse

CALLS = "/_dash-update-component"
SHOW = next(each for each in create_app(None).callback_map if "page.children" in each)


@pytest.fixture(scope="module")
def app() -> Iterator[Dash]:
    with closing(analyze(SAMPLE)) as analysis:
        yield create_app(analysis)


@pytest.fixture
def client(app: Dash) -> FlaskClient:
    made: FlaskClient = app.server.test_client()
    return made


@pytest.fixture
def guarded() -> FlaskClient:
    made: FlaskClient = create_app(None, access=Access("s3cret")).server.test_client()
    return made


def call(**changes: Any) -> dict[str, Any]:
    """Return the call that a page makes, but for what is to be changed."""
    outputs = [
        {"id": name, "property": of}
        for name, _, of in (each.partition(".") for each in SHOW.strip(".").split("..."))
    ]
    inputs = [
        {"id": "address", "property": "pathname", "value": "/"},
        {"id": "address", "property": "search", "value": ""},
        {"id": "ready", "property": "data", "value": True},
    ]
    body = {"output": SHOW, "outputs": outputs, "inputs": inputs, "changedPropIds": []}
    return body | changes


def test_a_call_as_pages_make_it(client: FlaskClient) -> None:
    answer = client.post(CALLS, json=call())
    assert answer.status_code == 200
    assert "Where the time went" in answer.get_data(as_text=True)


def inputs(pathname: Any, search: Any) -> list[dict[str, Any]]:
    return [
        {"id": "address", "property": "pathname", "value": pathname},
        {"id": "address", "property": "search", "value": search},
        {"id": "ready", "property": "data", "value": True},
    ]


@pytest.mark.parametrize(
    "body",
    [
        None, [], 5, "text", {}, {"output": 5}, {"output": []}, {"output": {"a": 1}},
        {"output": "nothing.children"}, {"output": "went.data"},
        call(inputs=None), call(inputs=5), call(inputs=[]), call(inputs=[1, 2, 3]),
        call(inputs=[{}, {}, {}]), call(inputs=inputs("/", "")[:2]),
        call(inputs=inputs(5, "")), call(inputs=inputs(["/"], "")), call(inputs=inputs("/", {})),
        call(inputs=[[each] for each in inputs("/", "")]), call(state=5), call(state=[{}]),
        call(outputs=None), call(outputs=[]), call(outputs={"id": "page", "property": "children"}),
        call(outputs=[1, 2, 3, 4, 5]), call(changedPropIds=5), call(changedPropIds=[{}]),
        {key: value for key, value in call().items() if key != "inputs"},
        {key: value for key, value in call().items() if key != "outputs"},
    ],
)  # fmt: skip
def test_a_call_that_no_page_makes_is_refused(
    client: FlaskClient, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "traceprof.dashboard"):
        answer = client.post(CALLS, json=body)
    assert 400 <= answer.status_code < 500
    (line,) = (record.getMessage() for record in caplog.records)
    assert "refused" in line
    assert "\n" not in line
    assert client.post(CALLS, json=call()).status_code == 200


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"output": NaN', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"{}", "text/plain"),
        (b"{}", None),
        (b" " * (2 << 20), "application/json"),
    ],
)
def test_what_is_no_json_is_refused(client: FlaskClient, data: bytes, kind: str | None) -> None:
    answer = client.post(CALLS, data=data, content_type=kind)
    assert 400 <= answer.status_code < 500
    assert client.post(CALLS, json=call()).status_code == 200


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
    max_leaves=12,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
@given(st.sampled_from([*call()]), anything, anything, anything)
def test_whatever_is_sent_is_answered(
    client: FlaskClient, key: str, value: Any, pathname: Any, search: Any
) -> None:
    for body in (call(**{key: value}), call(inputs=inputs(pathname, search)), value):
        assert client.post(CALLS, json=body).status_code < 500


@pytest.mark.parametrize("search", ["?rank=99", "?rank=x", "?report=7", "?start=9&end=1", "?a=b"])
def test_an_address_that_cannot_be_shown_says_why(client: FlaskClient, search: str) -> None:
    answer = client.post(CALLS, json=call(inputs=inputs("/steps", search)))
    assert "There is no such view" in answer.get_data(as_text=True)


# -- files ----------------------------------------------------------------------------------------


PATHS = (
    "/assets/../app.py", "/assets/..%2fapp.py", "/assets/%2e%2e/app.py", "/assets/....//app.py",
    "/assets//etc/passwd", "/assets/%2fetc%2fpasswd", "/assets/..%5capp.py", "/assets/%00",
    "/static/app.py", "/static/../app.py", "/..%2f..%2fetc/passwd", "//etc/passwd",
    "/_dash-component-suites/dash/../../../etc/passwd",
    "/_dash-component-suites/dash/%2e%2e/%2e%2e/etc/passwd",
    "/_dash-component-suites/dash/..%2f..%2f..%2fetc%2fpasswd",
    "/_dash-component-suites/dash/dash.py", "/_dash-component-suites/dashboards/app.py",
    "/_dash-component-suites/os/os.py", "/_dash-component-suites/traceprof/run.py",
    "/_dash-component-suites/nothing/x.js", "/sample_traces/ddp.sqlite", f"/assets/{SAMPLE}",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_reaches_the_file_system(sample_url: str, path: str) -> None:
    # As it is: clients that mean well would tidy it up.
    host = urlsplit(sample_url).netloc
    with closing(http.client.HTTPConnection(host, timeout=10)) as connection:
        connection.putrequest("GET", path, skip_accept_encoding=True)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status < 500
    # Any other path is the page itself, which says that there is no such view.
    assert answer.status >= 300 or b"react-entry-point" in body
    assert b"root:" not in body
    assert re.search(rb"^\s*(import|from) \w", body, re.MULTILINE) is None
    assert b"SQLite format" not in body


# -- who asks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "169.254.169.254", "[::1", "localhost@x"]
)
def test_another_host_name_is_refused(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code in {400, 403}


@pytest.mark.parametrize("host", ["localhost:8050", "127.0.0.1:9", "[::1]:80", "127.1.2.3"])
def test_loopback_names_are_taken(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


def test_a_token_is_asked_for(guarded: FlaskClient) -> None:
    paths = ("/", "/steps", "/assets/shell.js", "/_dash-layout", "/?token=", "/?token=wrong")
    for path in paths:
        assert guarded.get(path).status_code == 403
    assert guarded.post(CALLS, json=call()).status_code == 403


def test_a_token_is_kept_in_a_cookie(guarded: FlaskClient) -> None:
    answer: TestResponse = guarded.get("/steps?rank=0&token=s3cret")
    assert answer.status_code == 302
    assert answer.location == "/steps?rank=0"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert guarded.get("/steps?rank=0").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/?token=s3cret", "/\\evil.example?token=s3cret"])
def test_the_token_leads_nowhere_else(guarded: FlaskClient, path: str) -> None:
    location = guarded.get(path).headers.get("Location", "/")
    assert urlsplit(location).netloc == ""


def test_what_a_page_may_load(client: FlaskClient) -> None:
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http:" not in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_nothing_is_fetched_from_elsewhere(client: FlaskClient) -> None:
    page = client.get("/").get_data(as_text=True)
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert 'src="//' not in page


def test_no_debugger_answers(client: FlaskClient) -> None:
    assert "console" not in client.get("/?__debugger__=yes&cmd=resource&f=debugger.js").headers
    config = json.loads(
        client.get("/").get_data(as_text=True).split('type="application/json">')[1].split("<")[0]
    )
    assert not config.get("ui")
    assert not config.get("hot_reload")
