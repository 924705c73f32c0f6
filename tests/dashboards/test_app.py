"""The overview page: the analysis' own numbers, served without a network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dashboards import figures
from dashboards.app import HOST, create_app, serve
from tests.builders import TraceBuilder
from tests.conftest import SAMPLE
from traceprof.analysis import Analysis, analyze
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def sample() -> Iterator[Analysis]:
    analysis = analyze(SAMPLE)
    yield analysis
    analysis.close()


def layout(analysis: Analysis) -> str:
    client = create_app(analysis).server.test_client()
    answer = client.get("/_dash-layout")
    assert answer.status_code == 200
    return str(answer.get_data(as_text=True))


def test_bars_add_up_to_the_window(sample: Analysis) -> None:
    figure = figures.breakdown(sample)
    for index, result in enumerate(sample.breakdown):
        total = sum(bar.x[index] for bar in figure.data)
        assert total == pytest.approx(result.whole.window_ns / 1e6)


def test_findings_are_shown(sample: Analysis) -> None:
    shown = layout(sample)
    for finding in sample.findings:
        assert json.dumps(finding.title)[1:-1] in shown


def test_names_are_never_markup(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)"
    path = TraceBuilder().kernel(0, 10, name).kernel(900, 999).write(tmp_path / "t.sqlite")
    analysis = analyze(path)
    tree: dict[str, Any] = json.loads(layout(analysis))
    analysis.close()

    def components(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield str(node.get("type"))
            for child in node.values():
                yield from components(child)
        elif isinstance(node, list):
            for child in node:
                yield from components(child)

    # The name is in the page as text; nothing in the page interprets text as markup.
    assert "onerror" in json.dumps(tree)
    assert not {"Markdown", "DangerouslySetInnerHTML", "Iframe"} & set(components(tree))


def test_a_run_without_gpu_work(tmp_path: Path) -> None:
    analysis = analyze(TraceBuilder().nvtx("step 0", 0, 9).write(tmp_path / "t.sqlite"))
    assert "there is no time to break down" in layout(analysis)
    analysis.close()


def test_nothing_is_fetched_from_elsewhere(sample: Analysis) -> None:
    page = create_app(sample).server.test_client().get("/").get_data(as_text=True)
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_a_taken_port_is_said(sample: Analysis) -> None:
    with closing(socket.socket()) as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(UsageError, match="--port"):
            serve(sample, taken.getsockname()[1])


def test_without_its_extra_the_command_names_it() -> None:
    code = (
        "import sys; sys.modules['dash'] = None\n"
        f"from traceprof.cli.main import main; main(['dashboard', {str(SAMPLE)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "traceprof: cannot start the dashboard: the package dash is not installed;"
        " install the extra: pip install 'traceprof[dashboard]'\n"
    )
