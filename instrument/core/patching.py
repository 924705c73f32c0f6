"""Replacement of attributes and names, and restoring every original."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_log = logging.getLogger("traceprof.instrument")


def after_import(name: str, callback: Callable[[], object]) -> Callable[[], None]:
    """Call back once the module `name` is imported: now, if it already is.

    Returns a function that cancels this. Exceptions of the callback go to the log.
    """
    if name in sys.modules:
        _call_back(callback)
        return lambda: None
    finder = _Finder(name, callback)
    sys.meta_path.insert(0, finder)
    return finder.leave


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module through the other finders, and calls back after its execution."""

    def __init__(self, name: str, callback: Callable[[], object]) -> None:
        self._name = name
        self._callback = callback

    def leave(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  (the others are asked by name)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the module's own spec, whose loader calls back after the import."""
        if fullname != self._name:
            return None
        self.leave()
        return spec_calling_back(fullname, self._callback)


def spec_calling_back(name: str, callback: Callable[[], object]) -> ModuleSpec | None:
    """Return a module's own specification, whose loader calls back after the import."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return spec
    loader, execute = spec.loader, spec.loader.exec_module

    @functools.wraps(execute)
    def execute_and_call_back(module: ModuleType) -> None:
        # The module keeps its loader: restore it. Other callbacks have been installed by now.
        vars(loader).pop("exec_module", None)
        execute(module)
        _call_back(callback)

    loader.exec_module = execute_and_call_back  # type: ignore[method-assign]
    return spec


def _call_back(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001  (the user's import has succeeded)
        _log.warning("could not instrument an imported module", exc_info=True)


_ABSENT = object()


class Patches:
    """A list of replacements that can be undone. Not thread-safe: its owner locks.

    With `everywhere`, replacements in all modules are collected for its owner to do in one pass.
    """

    def __init__(self, everywhere: Exchange | None = None) -> None:
        self._undo: list[Callable[[], object]] = []
        self._everywhere = everywhere

    def replace(self, owner: object, name: str, new: object) -> None:
        """Set an attribute of a module, class or object.

        Restoring deletes it if the owner had only inherited it, and leaves an attribute that other
        code has replaced since.
        """
        stored = _stored(owner, name)
        setattr(owner, name, new)
        self._undo.append(partial(_put_back, owner, name, new, stored))

    def replace_everywhere(self, original: object, wrapper: object) -> None:
        """Replace `original` by `wrapper` in all modules, under any name.

        Restoring replaces `wrapper` by `original`, also in modules that were imported in between.
        """
        self.replace_each_everywhere([(original, wrapper)])

    def replace_each_everywhere(self, pairs: Iterable[tuple[object, object]]) -> None:
        """Do `replace_everywhere` for each pair of original and wrapper, in one pass."""
        pairs = list(pairs)
        self._undo.append(partial(self._exchange, [(new, original) for original, new in pairs]))
        self._exchange(pairs)

    def on_restore(self, callback: Callable[[], object]) -> None:
        """Call this when restoring, for example to remove a hook or to reset a state."""
        self._undo.append(callback)

    def restore(self) -> None:
        """Undo everything, last first; failures are logged and do not stop the rest."""
        while self._undo:
            _attempt(self._undo.pop())

    def _exchange(self, pairs: list[tuple[object, object]]) -> None:
        """Replace the first of each pair by the second in all modules, or have it collected."""
        exchange = self._everywhere or Exchange()
        exchange.add(pairs)
        if self._everywhere is None:
            exchange.run()


class Exchange:
    """Replacements in the namespaces of all modules, of which there may be thousands."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[object, object]] = {}

    def add(self, pairs: list[tuple[object, object]]) -> None:
        """Collect the replacement of the first of each pair by the second, after those before."""
        later = {id(old): (old, new) for old, new in pairs}
        earlier = {
            key: (old, later[id(new)][1] if id(new) in later else new)
            for key, (old, new) in self._pairs.items()
        }
        self._pairs = {**later, **earlier}

    def run(self) -> None:
        """Make all replacements that were collected, in one pass."""
        pairs, self._pairs = self._pairs, {}
        for namespace in _namespaces() if pairs else ():
            # Most have none, which is seen without a step of Python for each name.
            if not pairs.keys().isdisjoint(map(id, list(namespace.values()))):
                _attempt(partial(_replace, namespace, pairs))


def _replace(namespace: dict[str, Any], pairs: dict[int, tuple[object, object]]) -> None:
    for name, value in list(namespace.items()):
        if id(value) in pairs:
            namespace[name] = pairs[id(value)][1]


def _attempt(change: Callable[[], object]) -> None:
    """Make one change to what is not ours; log a failure."""
    try:
        change()
    except Exception:  # noqa: BLE001  (foreign setters may raise anything)
        _log.warning("could not replace a name or put it back", exc_info=True)


def _stored(owner: object, name: str) -> object:
    try:
        return vars(owner).get(name, _ABSENT)
    except TypeError:  # an object with slots inherits no values
        return getattr(owner, name, _ABSENT)


def _put_back(owner: object, name: str, new: object, stored: object) -> None:
    if _stored(owner, name) is not new:
        return
    if stored is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, stored)


def _namespaces() -> Iterator[dict[str, Any]]:
    """Yield the namespace of every imported module, without loading lazy ones."""
    for module in list(sys.modules.values()):
        try:
            namespace = object.__getattribute__(module, "__dict__")
        except Exception:  # noqa: BLE001, S112  (whatever stands among the modules)
            continue
        if isinstance(namespace, dict):
            yield namespace
