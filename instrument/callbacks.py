"""Steps and epochs as training frameworks report them: one range each, on the calling thread."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from instrument import switch
from instrument.training import annotate, step
from instrument.watching import watch

Report = Callable[["ReportedTraining", Any], object]


class ReportedTraining:
    """The ranges of one training, which nest: inner ones are closed first.

    With options of `instrument.watch` it watches the ranks from the training's begin to its end.
    """

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self._options = options
        self._open: dict[str, annotate] = {}
        self._num_optimizer_steps = 0

    def begin(self, num_optimizer_steps: int) -> None:
        """Begin a training; a resumed one has made this many optimizer steps before."""
        self.end()
        self._num_optimizer_steps = num_optimizer_steps
        if self._options:
            watch(**self._options)

    def opens(self, kind: str, text: str) -> None:
        """Open a range of a kind, in place of one of its kind that is still open."""
        self.closes(kind)
        self._enter(kind, annotate(text))

    def closes(self, kind: str) -> None:
        """Close the range of a kind, and those inside that are still open."""
        while kind in self._open:
            self._open.popitem()[1].__exit__()

    def step_begins(self) -> None:
        """Open the next step, if none is open: batches of gradient accumulation are one step."""
        if "step" not in self._open:
            self._enter("step", step())

    def batch_ends(self, num_optimizer_steps: int) -> None:
        """Close the step if there are more optimizer steps than at the last call."""
        if num_optimizer_steps != self._num_optimizer_steps:
            self._num_optimizer_steps = num_optimizer_steps
            self.closes("step")

    def end(self) -> None:
        """Close all ranges: the training is over, or has failed within a step."""
        while self._open:
            self._open.popitem()[1].__exit__(BaseException)
        if self._options:
            switch.end_watch()

    def _enter(self, kind: str, opened: annotate) -> None:
        self._open[kind] = opened
        opened.__enter__()


class _Callback:
    def __init__(self, **watch: Any) -> None:  # noqa: ANN401  (options of `instrument.watch`)
        super().__init__()
        self._training = ReportedTraining(watch)


def callback_class(
    module: str, bases: Sequence[str], hooks: Mapping[str, Report], place: int
) -> type:
    """Make the class `Callback` of a module, from the framework's own one, and return it.

    Of the names that one may have, that of a package counts which the script has imported, else
    which is installed. Each hook reports to the training with its argument at `place`, the
    framework's state; versions of the framework pass it different ones after it.
    """
    loaded = [base for base in bases if base.rpartition(".")[0] in sys.modules]
    for base in [*loaded, *bases]:
        if importlib.util.find_spec(base.partition(".")[0]) is not None:
            break
    else:
        package = module.rpartition(".")[2]
        raise ImportError(f"{module} needs {package}: pip install {package}")

    def method(report: Report) -> Callable[..., None]:
        def hook(self: _Callback, *args: Any, **_: object) -> None:  # noqa: ANN401
            report(self._training, args[place])

        return hook

    methods = {name: method(report) for name, report in hooks.items()}
    facts = {"__doc__": sys.modules[module].__doc__, "__module__": module}
    package, _, name = base.rpartition(".")
    own = getattr(importlib.import_module(package), name)
    made = type("Callback", (_Callback, own), methods | facts)
    vars(sys.modules[module])["Callback"] = made  # from now on it is found at once
    return made
