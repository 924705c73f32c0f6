"""Replacing attributes and names, and having everything back."""

import logging
import sys
import types
from collections.abc import Iterator

import pytest

from instrument.core.patching import Exchange, Patches


class Base:
    def inherited(self) -> str:
        return "inherited"


class Derived(Base):
    @staticmethod
    def own() -> str:
        return "own"


class Slotted:
    __slots__ = ("value",)
    value: int


@pytest.fixture
def modules() -> Iterator[tuple[types.ModuleType, types.ModuleType]]:
    """Give two modules that are imported, as far as Python knows."""
    made = types.ModuleType("patched_one"), types.ModuleType("patched_two")
    for module in made:
        sys.modules[module.__name__] = module
    yield made
    for module in made:
        del sys.modules[module.__name__]


def original() -> str:
    return "original"


def wrapper() -> str:
    return "wrapper"


_FUNCTIONS = original, wrapper


@pytest.fixture(autouse=True)
def functions_of_this_module() -> Iterator[None]:
    """Put this module's functions back by name: it is a module like those that are exchanged."""
    yield
    globals()["original"], globals()["wrapper"] = _FUNCTIONS


def test_an_own_attribute_comes_back_as_it_was_stored() -> None:
    before = vars(Derived)["own"]
    patches = Patches()
    patches.replace(Derived, "own", staticmethod(wrapper))
    assert Derived.own() == "wrapper"
    patches.restore()
    assert vars(Derived)["own"] is before
    assert isinstance(before, staticmethod)


def test_an_inherited_attribute_is_inherited_again() -> None:
    patches = Patches()
    patches.replace(Derived, "inherited", lambda _: "new")
    assert (Derived().inherited(), Base().inherited()) == ("new", "inherited")
    patches.restore()
    assert "inherited" not in vars(Derived)
    assert Derived().inherited() == "inherited"


def test_objects_with_slots_and_new_names() -> None:
    slotted, module = Slotted(), types.ModuleType("anything")
    slotted.value = 1
    patches = Patches()
    patches.replace(slotted, "value", 2)
    patches.replace(module, "name", 3)
    assert (slotted.value, module.name) == (2, 3)
    patches.restore()
    assert slotted.value == 1
    assert not hasattr(module, "name")


def test_twice_replaced_goes_back_step_by_step() -> None:
    module = types.ModuleType("anything")
    patches = Patches()
    for value in (1, 2):
        patches.replace(module, "name", value)
    patches.restore()
    assert not hasattr(module, "name")


def test_what_a_stranger_has_replaced_since_is_left_alone() -> None:
    module = types.ModuleType("anything")
    module.name = 1  # type: ignore[attr-defined]
    patches = Patches()
    patches.replace(module, "name", 2)
    module.name = 3  # type: ignore[attr-defined]
    patches.restore()
    assert module.name == 3


def test_every_module_under_any_name(modules: tuple[types.ModuleType, types.ModuleType]) -> None:
    one, two = modules
    one.first = one.second = two.third = original  # type: ignore[attr-defined]
    two.equal = 0  # type: ignore[attr-defined]
    patches = Patches()
    patches.replace_everywhere(original, wrapper)
    assert {one.first, one.second, two.third} == {wrapper}
    assert original.__name__ == "wrapper"  # this module holds it, too
    # Somebody imports it from there while it is replaced, somebody else drops it.
    two.later = one.first  # type: ignore[attr-defined]
    del one.second
    patches.restore()
    assert {one.first, two.third, two.later} == {original}
    assert original.__name__ == "original"
    assert not hasattr(one, "second")


@pytest.mark.parametrize("exchange", [None, Exchange()], ids=["at once", "in one pass"])
def test_replacements_follow_each_other(
    modules: tuple[types.ModuleType, types.ModuleType], exchange: Exchange | None
) -> None:
    one, _ = modules
    a, b, c = object(), object(), object()
    one.a, one.b, one.c = a, b, c  # type: ignore[attr-defined]
    patches = Patches(exchange)
    patches.replace_each_everywhere([(a, b), (b, a)])
    patches.replace_each_everywhere([(b, c)])
    if exchange is not None:
        assert (one.a, one.b) == (a, b)
        exchange.run()
    assert (one.a, one.b, one.c) == (c, a, c)
    patches.restore()
    if exchange is not None:
        exchange.run()
    assert (one.a, one.b, one.c) == (a, b, a)


def test_what_raises_among_the_modules_is_passed_over(
    modules: tuple[types.ModuleType, types.ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refusing:
        @property
        def __dict__(self) -> dict[str, object]:  # type: ignore[override]
            raise OSError("no names here")

    class Frozen(dict[str, object]):
        def __setitem__(self, key: str, value: object) -> None:
            raise TypeError("names stay")

    class Holder:
        names = Frozen(function=original)

        @property
        def __dict__(self) -> dict[str, object]:  # type: ignore[override]
            return self.names

    # Before the others, which follow.
    first = {"refusing": Refusing(), "frozen": Holder(), **sys.modules}
    monkeypatch.setattr(sys, "modules", first)
    one, _ = modules
    one.function = original  # type: ignore[attr-defined]
    patches = Patches()
    patches.replace_each_everywhere([(original, wrapper)])
    assert one.function is wrapper
    patches.restore()
    assert one.function is original
    assert [record.message for record in caplog.records] == [
        "could not replace a name or put it back"
    ]


def test_modules_that_load_lazily_are_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = []

    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> object:
            woken.append(name)
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "patched_lazy", Lazy("patched_lazy"))
    monkeypatch.setitem(sys.modules, "patched_none", None)
    monkeypatch.setitem(sys.modules, "patched_slots", Slotted())
    patches = Patches()
    patches.replace_everywhere(object(), object())
    patches.restore()
    assert woken == []


def test_restoring_goes_backwards_and_does_not_stop(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []

    def fail() -> None:
        raise RuntimeError("cannot be undone")

    patches = Patches()
    patches.on_restore(lambda: called.append("first"))
    patches.on_restore(fail)
    patches.on_restore(lambda: called.append("last"))
    with caplog.at_level(logging.WARNING):
        patches.restore()
    assert called == ["last", "first"]
    assert [record.name for record in caplog.records] == ["traceprof.instrument"]
    patches.restore()
    assert called == ["last", "first"]


def test_what_cannot_be_replaced_leaves_nothing_to_undo() -> None:
    patches = Patches()
    with pytest.raises(TypeError, match="immutable"):
        patches.replace(int, "bit_length", None)
    patches.restore()
