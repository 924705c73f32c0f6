"""The tests of what is changed: `python -m tests.touched` prints them, for `make check`.

These are changed tests, the folders of tests that mirror the folders of changed code, and tests
that import a changed module. Where nothing is changed, or what all tests share, it is all tests.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("traceprof", "dashboards", "instrument", "sample_traces")
SHARED = re.compile(r"tests/(support/|conftest\.py|__init__\.py)|pyproject\.toml|constraints\.txt")


def chosen(changed: Iterable[str], root: Path) -> list[str]:
    """Return the files and folders of tests to run after changes of these files, by their paths."""
    changed = [path for path in changed if path.endswith((".py", ".toml", ".txt", ".js", ".md"))]
    if not changed or any(map(SHARED.match, changed)):
        return ["tests"]
    sources = {path: path.read_text() for path in sorted((root / "tests").rglob("test_*.py"))}
    found = set()
    for path in changed:
        found |= {*_near(Path(path), root)}
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        parent, _, name = module.rpartition(".")
        imports = re.compile(
            rf"^from {re.escape(module)}\b|^import {re.escape(module)}\b"
            rf"|^from {re.escape(parent)} import \(?[^()]*?\b{re.escape(name)}\b",
            re.MULTILINE,
        )
        found |= {file for file, text in sources.items() if imports.search(text)}
    kept = [path for path in found if not found.intersection(path.parents)]
    return sorted(str(path.relative_to(root)) for path in kept)


def _near(path: Path, root: Path) -> Iterator[Path]:
    """Yield the tests that stand where the subject does."""
    tests = root / "tests"
    if path.parts[0] == "tests":
        if path.name.startswith("test_"):  # or what is kept beside one
            test = root / path.with_suffix(".py")
            yield from [test] if test.is_file() else []
        elif (root / path).is_file():
            yield (root / path).parent
    elif path.parts[0] in PACKAGES:
        skipped = 1 if path.parts[0] in ("traceprof", "sample_traces") else 0
        inner = Path(*path.parts[skipped:])
        if (alone := tests / f"test_{path.stem}.py").is_file():
            yield alone
        near = next(p for p in (tests / inner).parents if p.is_dir())
        yield from [near] if near != tests else sorted(tests.glob("test_*.py"))
    elif path.suffix == ".md":
        yield tests / "docs"


def changed_files() -> list[str]:
    """Return what differs from the last commit, or is new."""
    commands = ("git diff --name-only HEAD", "git ls-files --others --exclude-standard")
    printed = [
        subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    return "".join(printed).splitlines()


if __name__ == "__main__":
    print(*chosen(changed_files(), ROOT))
