"""Every public name has a docstring, which names each parameter, field and attribute."""

import inspect
import re
from collections.abc import Iterator

import pytest

import instrument
import traceprof
from traceprof import testing

PUBLIC = {
    **{f"traceprof.{name}": getattr(traceprof, name) for name in traceprof.__all__},
    **{f"instrument.{name}": getattr(instrument, name) for name in instrument.__all__},
    "traceprof.testing.RecordedRun": testing.RecordedRun,
}
NAMES = [name for name in PUBLIC if not name.endswith("__")]


def lists(name: str, text: str) -> bool:
    """Return whether a docstring has an entry for a parameter or attribute."""
    return re.search(rf"^\s+{name}\b.*: ", text, re.MULTILINE) is not None


def of_function(name: str, function: object) -> Iterator[str]:
    text = inspect.getdoc(function) or ""
    if not text:
        yield name
    parameters = [*inspect.signature(function).parameters]  # type: ignore[arg-type]
    named = [one for one in parameters if one not in {"self", "cls"}]
    if len(text.splitlines()) > 1 or len(named) > 1:  # a single line may say it all
        yield from (f"{name}({one})" for one in named if not lists(one, f"\n {text}"))


def undocumented(name: str, value: object) -> Iterator[str]:
    """Yield what lacks a docstring, or its entry in one."""
    if not inspect.isclass(value):
        yield from of_function(name, value)
        return
    text = value.__doc__ or ""
    if not text or text.startswith(f"{value.__name__}("):  # one that a dataclass makes
        yield name
    for member, found in vars(value).items():
        function = getattr(found, "fget", None) or getattr(found, "__func__", found)
        if not member.startswith("_") and inspect.isfunction(function):
            yield from of_function(f"{name}.{member}", function)
    for field, kind in inspect.get_annotations(value).items():
        is_explained = re.fullmatch(r"Annotated\[.*['\"]\]", str(kind)) is not None
        if not (field.startswith("_") or is_explained or lists(field, text)):
            yield f"{name}.{field}"


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented(name: str) -> None:
    assert [*undocumented(name, PUBLIC[name])] == []


def test_what_lacks_a_docstring_is_found() -> None:
    class Documented:
        """It has one.

        Attributes:
            known: this one.
        """

        known: int
        unknown: int

        def method(self, first: int, second: int) -> None:
            """Add both."""

        def bare(self) -> None: ...

    assert len(NAMES) > 15
    assert {*undocumented("it", Documented)} == {
        "it.unknown",
        "it.method(first)",
        "it.method(second)",
        "it.bare",
    }
