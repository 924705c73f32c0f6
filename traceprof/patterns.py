"""Regular expressions that are compiled when they are first used.

There are two hundred of them, and compiling them would take longer than reading a small report.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable


class _LazyPattern:
    def __init__(self, expression: str, flags: int) -> None:
        self.pattern = expression
        self._flags = flags

    def __reduce__(self) -> tuple[object, ...]:
        return _LazyPattern, (self.pattern, self._flags)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever a pattern has)
        value = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, value)  # from now on without a detour
        return value


def lazy(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled when one of its methods is first used."""
    return cast("re.Pattern[str]", _LazyPattern(expression, flags))


def has_any(words: Iterable[str], text: str) -> bool:
    """Return whether a text has one of these words: quicker than the expression that needs one."""
    for word in words:  # noqa: SIM110  (a generator takes twice the time)
        if word in text:
            return True
    return False
