"""`data loading`, `backward` and `optimizer step`: the parts of a training step that end one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CellType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.optim import Optimizer
from torch.utils.data import dataloader, get_worker_info

from instrument.core import steps
from instrument.core.patching import Patches
from instrument.core.wrapping import is_in_backward, outermost
from traceprof import labels

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_HOOKED_CODE = Optimizer.profile_hook_step(bool).__code__
"""The code that identifies PyTorch's function."""


def install(patches: Patches) -> None:
    """Wrap the wait for the next batch, all backward passes, and the steps of all optimizers."""
    iterator = dataloader._BaseDataLoaderIter  # noqa: SLF001  (the base of both loaders)
    hooks: dict[str, Any] = {"before": steps.loading_begins, "after": steps.loading_ends}
    wait = outermost(labels.DATA_LOADING, iterator.__next__, _is_in_worker, **hooks)
    patches.replace(iterator, "__next__", wait)
    # Tensor.backward, autograd.backward and autograd.grad all call this, under any name; they
    # themselves stay unchanged.
    run = torch.autograd.graph._engine_run_backward  # noqa: SLF001
    hooks = {"before": steps.pass_begins, "after": steps.backward_ends}
    named = outermost(labels.BACKWARD, run, is_in_backward, **hooks)
    patches.replace_everywhere(run, named)
    _install_steps(patches)


def _is_in_worker() -> bool:
    return get_worker_info() is not None


def _install_steps(patches: Patches) -> None:
    """Wrap the steps of all optimizers, also of those that are created later.

    PyTorch wraps each class's `step` in a function that runs the step's hooks, and the class, its
    schedulers and bound methods all hold that function. So the step is exchanged inside of it:
    the function stays the same object everywhere, and none is missed.
    """
    hook_step = Optimizer.profile_hook_step

    @functools.wraps(hook_step)
    def hook_named_step(step: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        hooked = hook_step(step)
        _name_step(hooked, patches)
        return hooked

    for optimizer in {Optimizer, *_subclasses(Optimizer)}:
        step = vars(optimizer).get("step")
        if getattr(step, "hooked", False):
            _name_step(step, patches)
    patches.replace(Optimizer, "profile_hook_step", staticmethod(hook_named_step))


def _name_step(hooked: Any, patches: Patches) -> None:  # noqa: ANN401  (a function with a closure)
    """Put the wrapped step into PyTorch's function instead of the class's own."""
    cell = _cell_of_step(hooked)
    if cell is not None:
        step = cell.cell_contents
        cell.cell_contents = outermost(labels.OPTIMIZER_STEP, step, after=steps.optimizer_step_ends)
        patches.on_restore(functools.partial(setattr, cell, "cell_contents", step))


def _cell_of_step(hooked: Any) -> CellType | None:  # noqa: ANN401
    """Return the variable that holds the step; None for a function that PyTorch did not make."""
    while hooked is not None:
        code = getattr(hooked, "__code__", None)
        if code is _HOOKED_CODE:
            cell: CellType = hooked.__closure__[code.co_freevars.index("func")]
            return cell
        hooked = getattr(hooked, "__wrapped__", None)  # torch.compile wraps it again
    return None


def _subclasses(base: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
