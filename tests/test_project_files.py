"""Files for those who host, build and cite the project say what holds."""

import re
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main
from click.testing import CliRunner

from tests.support import dist
from tests.support.commands import blocks
from traceprof.version import __version__

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
GITLAB = ROOT / ".gitlab-ci.yml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
TEXTS = (".md", ".py", ".yml", ".yaml", ".toml", ".ipynb", ".cff", "")
FOLDERS = ("traceprof", "dashboards", "instrument", "benchmarks", "docs", "tests", ".ci", ".github")


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", [WORKFLOW, WORKFLOW.with_name("action.yml")]),
        ("github-actions", [ROOT / "action.yml"]),
        ("gitlab-ci", [GITLAB]),
        ("github-issue-config", [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
        ("github-issue-forms", FORMS),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_files_follow_their_schemas(schema: str, files: list[Path]) -> None:
    assert files
    done = CliRunner().invoke(main, ["--builtin-schema", f"vendor.{schema}", *map(str, files)])
    assert done.exit_code == 0, done.output


def test_jobs_that_the_page_shows_follow_their_schemas(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    jobs = blocks(page, "yaml")
    for schema, job in zip(("github-workflows", "gitlab-ci"), jobs, strict=True):
        (tmp_path / schema).with_suffix(".yml").write_text(job)
        test_files_follow_their_schemas(schema, [(tmp_path / schema).with_suffix(".yml")])


def test_both_run_everything_with_every_python() -> None:
    github, gitlab = (yaml.safe_load(path.read_text()) for path in (WORKFLOW, GITLAB))
    test = github["jobs"]["test"]
    assert test["steps"][-1]["run"] == ".ci/run"
    assert gitlab["test"]["script"] == [".ci/run"]
    [of_gitlab] = gitlab["test"]["parallel"]["matrix"]
    assert tuple(test["strategy"]["matrix"]["python"]) == tuple(of_gitlab["PYTHON"])
    assert tuple(of_gitlab["PYTHON"]) == dist.VERSIONS


def test_the_metadata_promises_the_pythons_that_are_tested() -> None:
    toml = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', toml)
    assert tuple(promised) == dist.VERSIONS


def test_the_citation_has_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def installed_names(text: str) -> list[str]:
    """Return what the commands `pip install` of a text install, without options."""
    commands = re.findall(r"pip3? install +([^`\n|&;]*)", text)
    return [word.strip("\"'") for command in commands for word in command.split()]


def test_nothing_installs_a_package_that_others_could_register() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    paths = [*paths, *ROOT.glob("*.*"), ROOT / "Makefile", GITLAB]
    texts = [path for path in paths if path.is_file() and path.suffix in TEXTS]
    named = {(path, name) for path in texts for name in installed_names(path.read_text())}
    assert len(named) > 10
    ours = re.compile(r"(traceprof|instrument|dashboards)(\[.*\])?([=<>~!].*)?")
    assert [(str(path), name) for path, name in named if ours.fullmatch(name)] == []
    assert all(ours.fullmatch(name) for name in ("traceprof", "traceprof[export]", "traceprof>=1"))


@pytest.mark.parametrize("path", [dist.CONSTRAINTS, dist.LOWEST], ids=lambda path: path.name)
def test_constraints_are_of_what_is_promised(path: Path) -> None:
    lines = path.read_text().splitlines()
    names = {re.split("==", line)[0].lower().replace("_", "-") for line in lines if "==" in line}
    toml = (ROOT / "pyproject.toml").read_text()
    [required] = re.findall(r"^dependencies = \[\n(.*?)^\]", toml, re.MULTILINE | re.DOTALL)
    assert {*re.findall(r'"([\w-]+)', required)} <= names
    pinned = re.compile(r"#.*|[\w.-]+==[\w.+!-]+( ; .*)?")
    assert [line for line in lines if not pinned.fullmatch(line)] == []
