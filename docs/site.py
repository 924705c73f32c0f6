"""Pages of the site that are not files of docs/: findings, commands, the gallery, the project's.

`make docs` runs it as a hook of MkDocs, which builds the site of mkdocs.yml.
"""

from __future__ import annotations

import json
import posixpath
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mkdocs.structure.files import File

import traceprof
from traceprof.analyses.explanations import explanation
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.cli.help import about_reports
from traceprof.cli.main import cli
from traceprof.reports import html
from traceprof.reports.tracks import scenes

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = "where-does-the-step-go"
OUTSIDE = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "sample_traces/README.md": "project/sample-traces.md",
    "benchmarks/README.md": "project/benchmarks.md",
    f"docs/{NOTEBOOK}.ipynb": f"{NOTEBOOK}.md",
    **{
        f"traceprof/reports/{name}-1.schema.json": f"schemas/{name}-1.schema.json"
        for name in ("analysis", "comparison", "whatif")
    },
}
"""Files of the repository that the site has, and where."""
GALLERY = {
    "training": "Two ranks of data-parallel training with several things wrong",
    "data-loading": "The GPU waits for batches",
    "exposed-waiting": "One rank has half as much again to compute",
    "pipeline-bubble": "A pipeline of three stages whose second one takes longer",
}
"""Samples whose reports the site shows, and what was planted in them."""
_INSIDE = {place: path for path, place in OUTSIDE.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each finding below that of all."""
    pages = ["findings/index.md", *({id_: f"findings/{id_}.md"} for id_ in FINDING_IDS)]
    concepts = next(part["Concepts"] for part in config.nav or [] if "Concepts" in part)
    for entry in concepts:
        if "Findings" in entry:
            entry["Findings"] = pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made = {
        **{place: _text(ROOT / path) for path, place in OUTSIDE.items()},
        **{f"findings/{id_}.md": explanation(id_) for id_ in FINDING_IDS},
        "findings/index.md": _findings(),
        "commands.md": _commands(),
    }
    made["gallery.md"] = _gallery(made)
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return a page whose links into the repository lead to pages, or are texts."""
    place = page.file.src_uri
    path = _INSIDE.get(place, f"docs/{place}")

    def linked(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups(default="")
        if not target or "://" in target:
            return match[0]
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        on_site = OUTSIDE.get(aim, aim.removeprefix("docs/"))
        if on_site == aim or on_site.endswith(".py"):  # source code
            return text
        relative = posixpath.relpath(on_site, posixpath.dirname(place) or ".")
        return f"{mark}[{text}]({relative}{anchor})"

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(linked, part) for part in parts)


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return _notebook(json.loads(text)["cells"]) if path.suffix == ".ipynb" else text


def _findings() -> str:
    lines = ["# Findings", "", "Each page is what `traceprof explain ID` prints.", ""]
    for id_ in FINDING_IDS:
        _, _, rest = explanation(id_).partition("\n\n")
        first = rest.split("\n\n")[0].replace("\n", " ")
        lines.append(f"* [`{id_}`]({id_}.md): {first}")
    return "\n".join(lines) + "\n"


def _gallery(made: dict[str, str]) -> str:
    """Return the page of the gallery; its reports become files of the site, too."""
    lines = ["# Gallery", "", "What `traceprof analyze --format html` writes of four samples.", ""]
    for name, planted in GALLERY.items():
        with closing(traceprof.analyze(f"sample_traces/{name}.sqlite")) as analysis:
            said = three_lines(analysis.result)
            made[f"gallery/{name}.html"] = html.render(
                analysis.result, scenes=scenes(analysis.result, traceprof.Options())
            )
        verdict = [said.problem, f"Do: {said.action}", f"Gain: {said.gain}"] if said else []
        lines += [f"## {planted}", "", *(f"> {line}  " for line in verdict), ""]
        lines += [f"[Open the report](gallery/{name}.html)", ""]
    return "\n".join(lines)


def _commands() -> str:
    parent = click.Context(cli, info_name="traceprof")
    parts = ["# Commands"]
    for name in cli.list_commands(parent):
        command = cli.get_command(parent, name)
        if command is not None and not command.hidden:
            context = click.Context(
                command, info_name=name, parent=parent, terminal_width=82, max_content_width=82
            )
            parts.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```")
    parts.append(f"## traceprof help reports\n\n```text\n{about_reports(parent)}\n```")
    return "\n\n".join(parts) + "\n"


def _notebook(cells: list[dict[str, Any]]) -> str:
    """Return a notebook as a page: texts, code, and what it put out."""
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                shown = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
