"""Callbacks after the import of a module, without importing it."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_log = logging.getLogger("traceprof.instrument")


def after_import(name: str, callback: Callable[[], object]) -> Callable[[], None]:
    """Call back once the module `name` is imported: now, if it already is.

    Returns a function that cancels this. Exceptions of the callback go to the log.
    """
    if name in sys.modules:
        _attempt(callback)
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
    if spec is not None and spec.loader is not None:
        _follow(spec.loader, callback)
    return spec


def _follow(loader: importlib.abc.Loader, callback: Callable[[], object]) -> None:
    """Make the loader call back after it has executed its module."""
    execute = loader.exec_module

    @functools.wraps(execute)
    def execute_and_call_back(module: ModuleType) -> None:
        # The module keeps its loader: restore it. Other callbacks have been installed by now.
        vars(loader).pop("exec_module", None)
        execute(module)
        _attempt(callback)

    loader.exec_module = execute_and_call_back  # type: ignore[method-assign]


def _attempt(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001  (the user's import has succeeded)
        _log.warning("could not instrument an imported module", exc_info=True)
