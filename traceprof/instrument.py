"""`instrument` under a name that nobody else can take: the same modules, each once.

A package on the public index is called `instrument`, too; where that is installed, the import here
says so. `python -m traceprof.instrument train.py` is `python -m instrument train.py`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from instrument import *  # noqa: F403  (for checkers of types)

_PREFIX = "traceprof.instrument."


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `traceprof.instrument.X` as the module `instrument.X`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a specification whose module is there already, or is imported."""
        del path, target
        if not fullname.startswith(_PREFIX):
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, which keeps its own specification."""
        module = importlib.import_module(spec.name.removeprefix("traceprof."))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its specification back; it ran when it was imported."""
        assert module.__spec__ is not None  # noqa: S101
        module.__spec__ = module.__spec__.loader_state


_package = importlib.import_module("instrument")
if not any(Path(folder, "switch.py").exists() for folder in _package.__path__):
    raise ImportError(
        f"another package named instrument hides, or has overwritten, the one of traceprof:"
        f" {list(_package.__path__)}: uninstall it and install traceprof again"
    )
if __name__ == "__main__":
    importlib.import_module("instrument.__main__").main()
sys.meta_path.insert(0, _Aliases())  # before the one that would find a second copy
sys.modules[__name__] = _package
