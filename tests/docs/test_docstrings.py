"""Names that docstrings put in backticks exist."""

import ast
import builtins
import importlib
import keyword
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # it reads all of our code

ROOT = Path(__file__).parents[2]
PACKAGES = ("traceprof", "dashboards", "instrument")

NOT_OURS = {"Trainer", "all_to_allv", "best_kernel", "emit_nvtx"}
"""Names of other libraries that docstrings explain and that no code of ours spells."""

FOREIGN = re.compile(r"(cuda[A-Z]|nvtx[A-Z]|pthread_|__\w+__$)")
"""Prefixes of functions of CUDA, NVTX and the C library; special methods of Python."""

QUOTED = re.compile(r"``([^`]+)``|`([^`]+)`")
NAME = re.compile(r"(?P<dotted>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?P<called>\(.*\))?", re.DOTALL)
FILE = re.compile(r"[\w/]+\.(py|pth|md|js)")
WORD = re.compile(r"[A-Za-z_]\w*")
ALWAYS_KNOWN = {*dir(builtins), *keyword.kwlist}


@dataclass
class Code:
    """Names in Python files.

    Attributes:
        members: The attributes and methods of each class, by the name of the class.
        bases: The names of the base classes of each class.
        modules: What each module defines at its top level, by the last part of its name.
        used: Everything that code names: definitions, parameters, attributes.
        spelled: Words in strings that are no docstrings: keys, columns, options.
    """

    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    bases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    modules: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    used: set[str] = field(default_factory=lambda: set(ALWAYS_KNOWN))
    spelled: set[str] = field(default_factory=set)

    def add(self, tree: ast.Module, module: str) -> list[ast.Constant]:
        """Take in the names of one file; return its docstrings, also of attributes."""
        docstrings: dict[int, ast.Constant] = {}
        self.modules[module] |= set(defined_by(tree.body))
        self.used.add(module)
        for node in ast.walk(tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    docstrings[id(text)] = text
                case ast.ClassDef():
                    self._add_class(node)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.used.add(node.name)
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                    self.used.add(name)
                case ast.keyword(arg=str(name)):
                    self.used.add(name)
                case ast.alias(name=name, asname=other):
                    self.used |= {*name.split("."), other or ""}
                case ast.Constant(value=str(words)) if id(node) not in docstrings:
                    self.spelled |= set(WORD.findall(words))
        return [*docstrings.values()]

    def _add_class(self, node: ast.ClassDef) -> None:
        self.used.add(node.name)
        self.members[node.name] |= set(defined_by(node.body))
        self.bases[node.name] |= {
            base.attr if isinstance(base, ast.Attribute) else base.id
            for base in map(without_parameters, node.bases)
            if isinstance(base, ast.Attribute | ast.Name)
        }
        self.members[node.name] |= {
            inner.attr
            for inner in ast.walk(node)
            if isinstance(inner, ast.Attribute)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
            and isinstance(inner.ctx, ast.Store)
        }

    def has_member(self, cls: str, name: str) -> bool:
        """Whether a class or one of its base classes has an attribute or a method."""
        if cls not in self.members:
            return name in self.used  # a class of another library: only that it is used
        return name in self.members[cls] or any(
            self.has_member(base, name)
            for base in self.bases[cls] - {cls, "Struct"}  # which has no public attributes
        )

    def knows(self, quoted: str) -> bool:
        """Whether what a docstring quotes exists, or is no name at all."""
        if FILE.fullmatch(quoted):
            return quoted in our_files()
        found = NAME.fullmatch(quoted)
        if found is None:
            return True
        *owners, name = found["dotted"].split(".")
        if name in NOT_OURS or FOREIGN.match(name):
            return True
        return self._has(owners, name) if owners else self._knows_word(name, found["called"])

    def _knows_word(self, name: str, called: str | None) -> bool:
        if name in self.used or called:
            return name in self.used
        is_name = "_" in name or re.search(r"[a-z][A-Z]", name)
        return not is_name or name in self.spelled

    def _has(self, owners: list[str], name: str) -> bool:
        owner = owners[-1]
        if owner in self.members:
            return self.has_member(owner, name)
        if owners[0] in PACKAGES and owner in self.modules:
            return bool({name, "__getattr__"} & self.modules[owner]) or name in self.modules
        if owners[0] in sys.stdlib_module_names:
            return hasattr(importlib.import_module(".".join(owners)), name)
        return name in self.used or (owner.isupper() and name in self.spelled)  # TABLE.column


def without_parameters(node: ast.expr) -> ast.expr:
    """Return `Generic` for `Generic[T]`."""
    return node.value if isinstance(node, ast.Subscript) else node


def defined_by(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module or class define."""
    for statement in body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.If(body=inner) | ast.Try(body=inner) | ast.With(body=inner):
                yield from defined_by(inner)
            case ast.Assign() | ast.AnnAssign():
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id


@lru_cache
def our_files() -> set[str]:
    """Return the paths of our files, each also without its first folders."""
    paths = [
        path.relative_to(ROOT)
        for folder in (*PACKAGES, "tests", "docs")
        for path in (ROOT / folder).rglob("*.*")
    ]
    return {"/".join(path.parts[first:]) for path in paths for first in range(len(path.parts))}


@lru_cache
def our_code() -> tuple[Code, dict[str, list[ast.Constant]]]:
    """Return the names of our code, and the docstrings of each file."""
    code, docstrings = Code(), {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.parent.name if path.stem == "__init__" else path.stem
            tree = ast.parse(path.read_text())
            docstrings[str(path.relative_to(ROOT))] = code.add(tree, name)
    return code, docstrings


def false_names(code: Code, docstrings: list[ast.Constant]) -> Iterator[tuple[int, str]]:
    """Yield the names in docstrings that do not exist, with their lines."""
    for node in docstrings:
        assert isinstance(node.value, str)
        for found in QUOTED.finditer(node.value):
            quoted = found[1] or found[2]
            if not code.knows(quoted):
                yield node.lineno + node.value[: found.start()].count("\n"), quoted


def test_names_in_docstrings_exist() -> None:
    code, docstrings = our_code()
    wrong = [
        f"{path}:{line}: `{name}`"
        for path, of_file in docstrings.items()
        for line, name in false_names(code, of_file)
    ]
    assert len(docstrings) > 300
    assert not wrong, "docstrings name what does not exist:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "quoted",
    [
        "Analysis.lost", "RunResult.lost", "traceprof.Analysis.lost",
        "traceprof.analysis.not_there", "no_such_function()", "NoSuchClass", "no_such_name",
        "rank.no_such_attribute", "os.no_such_function", "trace/no_such_module.py",
    ],
)  # fmt: skip
def test_names_that_do_not_exist_are_found(quoted: str) -> None:
    code, _ = our_code()
    tree = ast.parse(
        f'def function():\n    """Return it.\n\n    See ``{quoted}`` and `{quoted}`.\n    """'
    )
    assert list(false_names(code, Code().add(tree, "module"))) == [(4, quoted), (4, quoted)]


@pytest.mark.parametrize(
    "quoted",
    [
        "Analysis.result", "traceprof.analyze", "analyze()", "os.fsencode", "trace/open.py",
        "-o FILE", "a word",
    ],
)  # fmt: skip
def test_names_that_exist_pass(quoted: str) -> None:
    code, _ = our_code()
    assert code.knows(quoted)
