"""What a training step would take if something were otherwise: a replay of what depends on what.

`traceprof.whatif(...)` asks: the package can be called, since it has the name of its one door.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceprof.whatif.ask import Asked


class _Door(ModuleType):
    def __call__(self, *paths: Any, **how: Any) -> Asked:  # noqa: ANN401  (as `ask.whatif`)
        from traceprof.whatif.ask import whatif  # noqa: PLC0415  (numpy is imported only then)

        return whatif(*paths, **how)


sys.modules[__name__].__class__ = _Door
