"""Who may ask for what: hosts, tokens, paths, and calls that no page of ours makes."""

import http.client
import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from dash import Dash
from flask.testing import FlaskClient
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from dashboards import shell
from dashboards.server.app import assets_path, create_app
from dashboards.server.guard import LINK, Access
from tests.support.selection import few_and_many, for_examples, known
from tests.support.traces import SAMPLE, analysis_of

CALLS = "/_dash-update-component"
SHOW = next(output for output in create_app(None).callback_map if "_pages_content" in output)


@pytest.fixture(scope="module")
def app() -> Iterator[Dash]:
    with analysis_of(SAMPLE) as analysis:
        yield create_app(analysis)


@pytest.fixture
def client(app: Dash) -> FlaskClient:
    made: FlaskClient = app.server.test_client()
    return made


@pytest.fixture
def guarded() -> FlaskClient:
    access = Access("s3cret", port=8050)
    made: FlaskClient = create_app(None, access=access).server.test_client()
    return made


def call(output: str = SHOW, /, **changes: Any) -> dict[str, Any]:
    """Return the call that a page makes, but for what is to be changed."""
    outputs = [
        {"id": name, "property": of}
        for name, _, of in (part.partition(".") for part in output.strip(".").split("..."))
    ]
    body = {"output": output, "outputs": outputs, "inputs": inputs("/", ""), "changedPropIds": []}
    return body | changes


def test_a_call_as_pages_make_it(client: FlaskClient) -> None:
    answer = client.post(CALLS, json=call())
    assert answer.status_code == 200
    assert "Where the time went" in answer.get_data(as_text=True)


def inputs(pathname: Any, search: Any) -> list[dict[str, Any]]:
    return [
        {"id": shell.LOCATION, "property": "pathname", "value": pathname},
        {"id": shell.LOCATION, "property": "search", "value": search},
        {"id": "ready", "property": "data", "value": True},
    ]


@pytest.mark.parametrize(
    ("part", "given", "said"),
    [
        ("menu.children", inputs("/steps", "?start=5&end=9"), "0.000000 s to 0.000000 s (4 ns)"),
        ("menu.children", inputs("/steps", "?rank=x"), "all of the time"),
        ("choose-report.options", inputs("", "")[2:], "rank 1 · GPU 1 · NVIDIA"),
    ],
)
def test_the_bar_offers_what_the_analysis_has(
    client: FlaskClient, part: str, given: list[dict[str, Any]], said: str
) -> None:
    loading: FlaskClient = create_app(None).server.test_client()
    output = next(one for one in create_app(None).callback_map if part in one)
    offered, nothing = (
        known(one.post(CALLS, json=call(output, inputs=given)).json)["response"]
        for one in (client, loading)
    )
    assert said in str(offered)
    assert nothing == {}


def test_a_call_that_no_page_makes_is_refused(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Any] = [
        *(None, [], 5, "text", {}, {"output": 5}, {"output": []}, {"output": {"a": 1}}),
        *({"output": "nothing.children"}, call(inputs=None), call(inputs=5), call(inputs=[])),
        *(call(inputs=[1, 2, 3]), call(inputs=[{}, {}, {}]), call(inputs=inputs("/", "")[:2])),
        *(call(inputs=inputs(5, "")), call(inputs=inputs(["/"], "")), call(state=5)),
        *(call(inputs=inputs("/", {"a": 1})), call(outputs=None), call(changedPropIds=5)),
        *(call(outputs=[]), call(outputs=[1, 2, 3, 4, 5])),
        {key: value for key, value in call().items() if key != "inputs"},
        {key: value for key, value in call().items() if key != "outputs"},
    ]
    no_json = (b"", b"{", b"\xff\xfe", b'{"output": NaN', b"[" * 100_000, b" " * (2 << 20))
    sent = [(json.dumps(body).encode(), "application/json") for body in calls]
    sent += [(body, "application/json") for body in no_json]
    for data, kind in (*sent, (b"{}", "text/plain"), (b"{}", None)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "traceprof.dashboard"):
            answer = client.post(CALLS, data=data, content_type=kind)
        assert 400 <= answer.status_code < 500, (data[:99], kind)
        (line,) = (record.getMessage() for record in caplog.records)
        assert "refused" in line
        assert "\n" not in line
    assert client.post(CALLS, json=call()).status_code == 200


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@few_and_many(20, 300)
def test_whatever_is_sent_is_answered(num_examples: int, client: FlaskClient) -> None:
    def check(key: str, value: Any, pathname: Any, search: Any) -> None:
        for body in (call(**{key: value}), call(inputs=inputs(pathname, search)), value):
            assert client.post(CALLS, json=body).status_code < 500

    for_examples(num_examples, check, st.sampled_from([*call()]), anything, anything, anything)


@pytest.mark.parametrize("search", ["?rank=99", "?rank=x", "?report=7", "?start=9&end=1", "?a=b"])
def test_an_address_that_cannot_be_shown_says_why(client: FlaskClient, search: str) -> None:
    answer = client.post(CALLS, json=call(inputs=inputs("/steps", search)))
    assert "There is no such view" in answer.get_data(as_text=True)


ASSETS = f"/{assets_path()}/"
PATHS = (
    f"{ASSETS}../../app.py", f"{ASSETS}..%2fserver%2fapp.py", f"{ASSETS}%2fetc%2fpasswd",
    f"{ASSETS}/etc/passwd", f"{ASSETS}..%5cshell.py", f"{ASSETS}%00", "/modules/../shell.py",
    f"{ASSETS}../app.py", f"{ASSETS}..%2fapp.py", f"{ASSETS}%2e%2e/app.py", f"{ASSETS}....//app.py",
    f"{ASSETS}..%5capp.py", "/static/app.py", "/static/../app.py", "/..%2f..%2fetc/passwd",
    "//etc/passwd", "/_dash-component-suites/dash/../../../etc/passwd",
    "/_dash-component-suites/dash/%2e%2e/%2e%2e/etc/passwd",
    "/_dash-component-suites/dash/..%2f..%2f..%2fetc%2fpasswd",
    "/_dash-component-suites/dash/dash.py", "/_dash-component-suites/dashboards/app.py",
    "/_dash-component-suites/os/os.py", "/_dash-component-suites/traceprof/run.py",
    "/_dash-component-suites/nothing/x.js", "/sample_traces/ddp.sqlite", f"{ASSETS}{SAMPLE}",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_reaches_the_file_system(sample_url: str, path: str) -> None:
    # As it is: clients that mean well would tidy it up.
    host = urlsplit(sample_url).netloc
    with closing(http.client.HTTPConnection(host, timeout=120)) as connection:
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


NEVER = ("evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost@x")
ALWAYS = ("localhost:8050", "127.0.0.1:9", "[::1]:80", "127.1.2.3")
OPEN = ("10.1.2.3:8050", "[fd00::1]:8050", "169.254.169.254", f"{socket.gethostname()}:8050")


@pytest.mark.parametrize("is_open", [False, True])
def test_names_of_this_machine_are_answered_and_no_others(*, is_open: bool) -> None:
    client = create_app(None, access=Access(is_open=is_open)).server.test_client()
    ours = (*ALWAYS, *(OPEN if is_open else ()))
    for host in (*NEVER, *ALWAYS, *OPEN):
        status = client.get("/", headers={"Host": host}).status_code
        assert status in ({200} if host in ours else {400, 403}), host


def test_a_token_is_asked_for(guarded: FlaskClient) -> None:
    paths = ("/", "/steps", f"{ASSETS}shell.js", "/_dash-layout", "/?token=", "/?token=wrong")
    for path in paths:
        assert guarded.get(path).status_code == 403
    assert guarded.post(CALLS, json=call()).status_code == 403


def test_a_token_is_kept_in_a_cookie(guarded: FlaskClient) -> None:
    answer: TestResponse = guarded.get("/steps?rank=0&token=s3cret")
    assert answer.status_code == 302
    assert answer.location == "/steps?rank=0"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    # A link from a mail or a chat is followed by another site's page: the cookie must come along.
    assert "SameSite=Lax" in cookie
    assert cookie.startswith("traceprof-8050=")
    assert "s3cret" not in cookie
    assert guarded.get("/steps?rank=0").status_code == 200


def test_the_cookie_is_not_the_token(guarded: FlaskClient) -> None:
    guarded.set_cookie("traceprof-8050", "s3cret")
    assert guarded.get("/").status_code == 403
    value = Access("s3cret", port=8050).cookie
    guarded.set_cookie("traceprof-8051", value)  # another server's
    assert guarded.get("/").status_code == 403
    guarded.set_cookie("traceprof-8050", value)
    assert guarded.get("/").status_code == 200
    assert value not in {Access("other").cookie, "s3cret"}


def test_a_link_with_the_token_of_another_time_leads_on_for_who_has_the_cookie(
    guarded: FlaskClient, client: FlaskClient
) -> None:
    assert guarded.get("/steps?token=old").status_code == 403
    guarded.get("/?token=s3cret")
    for one in (guarded, client):
        answer = one.get("/steps?rank=0,1&token=old&start=5")
        assert (answer.status_code, answer.location) == (302, "/steps?rank=0,1&start=5")


def test_who_may_see_it_can_let_others_see_it(guarded: FlaskClient, client: FlaskClient) -> None:
    assert guarded.get(LINK).status_code == 403
    guarded.get("/?token=s3cret")
    assert guarded.get(LINK).get_json() == {"token": "s3cret"}
    assert client.get(LINK).get_json() == {"token": None}


NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_asks_for_is_refused(guarded: FlaskClient, site: str) -> None:
    guarded.get("/?token=s3cret")
    headers = {"Sec-Fetch-Site": site}
    for path in ("/", "/timeline/rank?rank=0", "/_dash-layout", f"{ASSETS}style.css"):
        assert guarded.get(path, headers=headers).status_code == 403
    framed = headers | {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    assert guarded.get("/", headers=framed).status_code == 403
    assert guarded.post(CALLS, json=call(), headers=headers | NAVIGATION).status_code == 403
    # A link that somebody follows.
    assert guarded.get("/", headers=headers | NAVIGATION).status_code == 200
    link = guarded.get("/?token=s3cret", headers=headers | NAVIGATION)
    assert link.status_code == 302


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),  # a typed address
        ({"Origin": "http://evil.example"}, 403),  # browsers that do not say where they are
        ({"Origin": "http://localhost:8050", "Host": "localhost:8050"}, 200),
    ],
)
def test_our_own_pages_are_answered(
    client: FlaskClient, headers: dict[str, str], status: int
) -> None:
    assert client.post(CALLS, json=call(), headers=headers).status_code == status


def test_data_is_never_kept_by_a_browser(client: FlaskClient) -> None:
    answers = [client.get(path) for path in ("/", "/_dash-layout", "/timeline/rank?rank=0", LINK)]
    answers.append(client.post(CALLS, json=call()))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["Cache-Control"] for answer in answers} == {"no-store"}
    with client.get(f"{ASSETS}style.css") as answer:
        assert answer.headers["Cache-Control"] != "no-store"


def test_modules_are_kept_until_one_changes(client: FlaskClient) -> None:
    assert f'import("{ASSETS}main.js")' in client.get("/").text
    for name in ("main.js", "charts/mount.js"):
        with client.get(ASSETS + name) as answer:
            assert answer.status_code == 200
            assert answer.mimetype == "text/javascript"
            assert answer.cache_control.immutable
            assert answer.cache_control.max_age == 365 * 24 * 3600
    assert client.get("/assets-of-another-version/main.js").mimetype == "text/html"


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/"])
def test_the_token_leads_nowhere_else(guarded: FlaskClient, path: str) -> None:
    # As it arrives: the client itself would take what follows // for a host.
    answer = guarded.get("/?token=s3cret", environ_overrides={"PATH_INFO": path})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/evil.example/")


def test_what_a_page_may_load(client: FlaskClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http:" not in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
