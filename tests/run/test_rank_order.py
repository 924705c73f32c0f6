"""Ranks stand by their numbers, whatever the order in which the reports are given."""

import json
from pathlib import Path

from tests.support.builders import TraceBuilder
from traceprof.analysis import Options, analyze, analyze_reports
from traceprof.reports import json as json_report
from traceprof.reports import text

ORDER = [0, 1, 2, 3, 10, 11]


def test_ranks_stand_by_number(tmp_path: Path) -> None:
    paths = [
        TraceBuilder()
        .kernel(100, 200 + number, pid=number + 1)
        .nvtx("step 0", 50, 300, pid=number + 1)
        .write(tmp_path / f"rank_{number}.sqlite")
        for number in ORDER
    ]
    options = Options(savings=False)
    result = analyze_reports(sorted(paths, key=str), options, jobs=1)
    assert [rank.rank for rank in result.run.ranks] == ORDER
    assert [measured.whole.window_ns for measured in result.breakdown] == [100 + n for n in ORDER]
    document = json.loads(json_report.render(result))
    for key in ("ranks", "breakdown", "steps"):
        assert [entry["rank"] for entry in document[key]] == ORDER
    names = [document["reports"][rank["report"]]["path"] for rank in document["ranks"]]
    assert names == [str(path) for path in paths]
    steps = text.render(result).partition("Per training step")[2].partition("Ranks on one")[0]
    rows = [line.split()[0] for line in steps.splitlines() if line.strip()[:1].isdecimal()]
    assert rows == [str(number) for number in ORDER]
    analysis = analyze(*reversed(paths), options=options, jobs=1)
    assert [(rank.rank, rank.pid) for rank in analysis.run.ranks] == [(n, n + 1) for n in ORDER]
    analysis.close()
