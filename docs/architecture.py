"""Draw the pictures in architecture.md from the code: `python docs/architecture.py`.

The floors are those that import-linter holds (pyproject.toml), what stands on each is said by the
first line of its docstring, the arrows are the imports between folders, types included. Arrows
that follow from others are left out. The way of the data is read from the annotations of the
functions that pass it on. With `--check` nothing is written: the exit status is 1 if the page is
not what the code gives.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("traceprof", "dashboards", "instrument")
GROUND = "ground"  # stands for all modules of the lowest floor

# The functions that pass the data on, in order. What one returns, the next one takes.
STATIONS = (
    "traceprof.trace.open.open_trace",
    "traceprof.run.opening.open_report",
    "traceprof.execution.measuring.measure",
    "traceprof.analyses.verdict.measured_run.measured_run",
    "traceprof.analyses.verdict.judging.judge",
    "traceprof.replay.savings.savings",
    "traceprof.analyses.verdict.run_result.RunResult",
    "traceprof.reports.text.render",
)
# Where else a type goes.
BRANCHES = {
    "RunResult": (
        "traceprof.store.save",
        "traceprof.frames.results.table_frame",
        "traceprof.documents.analysis.records.document",
    ),
    "Document": ("traceprof.comparison.sides.LoadedSide",),
    "LoadedSide": ("traceprof.comparison.ask.compared",),
    "d.Comparison": ("traceprof.reports.comparison_sections.render_comparison",),
}


@cache
def floors() -> list[list[str]]:
    """Return the floors of traceprof from top to bottom, each by its folders and modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (
        contract["layers"] for contract in contracts if contract.get("containers") == ["traceprof"]
    )
    names = [re.findall(r"\w+", layer) for layer in layers]
    return [[name for name in floor if source(f"traceprof.{name}") is not None] for floor in names]


def source(module: str) -> Path | None:
    """Return the file of a module, of a folder its `__init__.py`; None where there is none."""
    place = ROOT.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in candidates if file.is_file()), None)


def first_line(module: str) -> str:
    """Return the first line of the docstring of a module or folder, without its full stop."""
    file = source(module)
    assert file is not None, module  # noqa: S101
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].removesuffix(".")


def room(module: str) -> str:
    """Return what stands for a module in the picture: its folder, or itself at the root."""
    package, _, rest = module.partition(".")
    if package != "traceprof":
        return package
    name = rest.partition(".")[0]
    if name == "__main__":
        return "cli"
    return GROUND if name in floors()[-1] else name


def arrows() -> list[tuple[str, str]]:
    """Return which rooms import which, without what follows from others.

    Raises:
        ValueError: rooms import each other in a circle, so that there are no floors.
    """
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    rooms = {module: room(module) for module in graph.modules}
    direct = {
        (rooms[module], rooms[imported])
        for module in graph.modules - set(PACKAGES)  # a package's own file names what it offers
        for imported in graph.find_modules_directly_imported_by(module)
        if imported not in PACKAGES and rooms[module] != rooms[imported]
    }
    reachable = set(direct)
    while longer := chained(reachable) - reachable:
        reachable |= longer
    circle = sorted(above for above, below in reachable if above == below)
    if circle:
        raise ValueError(f"these import each other in a circle: {', '.join(circle)}")
    return sorted(direct - chained(reachable))


def chained(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs that two pairs make together."""
    return {(a, d) for (a, b), (c, d) in product(pairs, repeat=2) if b == c}


def picture_of_floors() -> str:
    """Return the floors as a Mermaid flow chart."""
    *upper, ground = floors()
    rooms = {name: f"traceprof.{name}" for floor in upper for name in floor if name != "__main__"}
    boxes = [
        box(name, folder_name(module), first_line(module))
        for name, module in {
            **rooms,
            "dashboards": "dashboards",
            "instrument": "instrument",
        }.items()
    ]
    boxes.append(box(GROUND, "the ground", " · ".join(sorted(ground))))
    lines = [f"    {above} --> {below}" for above, below in arrows()]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *lines, "```", ""])


def box(name: str, title: str, text: str) -> str:
    """Return a box of a flow chart."""
    quoted = text.replace('"', "#quot;")
    return f'    {name}["<b>{title}</b><br>{quoted}"]'


def folder_name(module: str) -> str:
    """Return how the pictures write a module or folder: `trace/` or `analysis.py`."""
    file = source(module)
    is_folder = file is not None and file.name == "__init__.py"
    path = module.removeprefix("traceprof.").replace(".", "/")
    return path + ("/" if is_folder else ".py")


def way_of_the_data() -> str:
    """Return the types that the data passes through as a Mermaid flow chart.

    Raises:
        ValueError: a function does not take what the one before it returns.
    """
    lines = ["```mermaid", "flowchart TD", "    d0([file])"]
    boxes = {"path": 0}
    passed = "path"
    stations = [*STATIONS]
    places: list[str | None] = [None] * len(stations)  # without one, the station before
    for source, branches in BRANCHES.items():
        stations += branches
        places += [source] * len(branches)
    for number, (station, source) in enumerate(zip(stations, places, strict=True), start=1):
        module, _, name = station.rpartition(".")
        arguments, returned = signature(module, name)
        before = number - 1 if source is None else boxes[source]
        passed = passed if source is None else source.rpartition(".")[2]
        if passed not in arguments:
            raise ValueError(f"{station} takes no {passed}: {', '.join(arguments)}")
        folder = module.rpartition(".")[0]
        place = folder_name(module if folder == "traceprof" else folder)
        text = {"render": "([report])", "save": "[(store)]"}.get(name, f'["{returned}"]')
        boxes[returned] = number
        lines.append(f"    d{number}{text}")
        lines.append(f'    d{before} -- "{place} {name}()" --> d{number}')
        passed = re.findall(r"\w+", returned)[-1]
    return "\n".join([*lines, "```", ""])


def signature(module: str, name: str) -> tuple[list[str], str]:
    """Return the names and types of what a function takes, and the type that it returns."""
    spec = find_spec(module)
    assert spec is not None, module  # noqa: S101
    assert spec.origin is not None, module  # noqa: S101
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (node,) = (
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name
    )
    if isinstance(node, ast.ClassDef):  # a dataclass takes its fields, and returns itself
        fields = [line for line in node.body if isinstance(line, ast.AnnAssign)]
        taken = [(ast.unparse(line.target), line.annotation) for line in fields]
        returned = name
    else:
        arguments = [*node.args.args, *node.args.kwonlyargs]
        taken = [(argument.arg, argument.annotation or ast.Constant("")) for argument in arguments]
        returned = ast.unparse(node.returns or ast.Constant(""))
    words = [name for name, _ in taken]
    for _, annotation in taken:
        words += re.findall(r"\w+", ast.unparse(annotation))
    return words, returned


def updated(text: str) -> str:
    """Return the page with what the code gives today."""
    for name, make in (("floors", picture_of_floors), ("data", way_of_the_data)):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def main() -> None:
    """Write the page, or check it."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(updated(text), encoding="utf-8")
    elif updated(text) != text:
        sys.exit("docs/architecture.md is not what the code gives: run python docs/architecture.py")


if __name__ == "__main__":
    main()
