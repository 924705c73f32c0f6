"""Did a change help, and where: two recordings, or several of each, against each other.

`traceprof.compare(before, after)` asks: the package can be called, since it has the name of its
one door.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceprof.compare.document import Comparison


class _Door(ModuleType):
    def __call__(self, *sides: Any, **how: Any) -> Comparison:  # noqa: ANN401  (as `ask.compare`)
        from traceprof.compare.ask import compare  # noqa: PLC0415  (numpy is imported only then)

        return compare(*sides, **how)


sys.modules[__name__].__class__ = _Door
