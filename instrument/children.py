"""`TRACEPROF_INSTRUMENT=1`: ranges also in the processes that a script starts itself.

`traceprof_instrument.pth`, which Python reads at every start, imports this if the variable is set.
Ranges are on once the process creates a process group: data loader workers and programs without
PyTorch never do. Only a little of the standard library is used: every start pays for it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` would take longer than the rest of this module
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

VARIABLE = "TRACEPROF_INSTRUMENT"
_RECORDERS = ("NVTX_INJECTION64_PATH", "TRACEPROF_RECORD_WITH")
"""One of these is set in a process that is recorded."""


_STARTED_PID = os.getpid()


def _warn_if_forked() -> None:
    if os.getpid() == _STARTED_PID or os.environ.get(_RECORDERS[1]) == "torch":
        return
    import logging  # noqa: PLC0415

    logging.getLogger("traceprof.instrument").warning(
        "process %d was forked, and Nsight Systems records no ranges of a process that is forked"
        " without a program of its own: record with torch.profiler (traceprof record --with torch),"
        " or have the launcher spawn its processes",
        os.getpid(),
    )


def _wait_for_group() -> None:
    """Enable at the first call of `init_process_group`, which is then restored."""
    import functools  # noqa: PLC0415
    import importlib  # noqa: PLC0415

    patching = importlib.import_module("instrument.core.patching")
    module = sys.modules.get("torch.distributed.distributed_c10d")
    original = getattr(module, "init_process_group", None)
    if original is None:  # a PyTorch without torch.distributed
        return
    patches = patching.Patches()

    @functools.wraps(original)
    def enable_and_init(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (the function's own)
        patches.restore()
        _warn_if_forked()
        importlib.import_module("instrument.recording").record_as_requested()
        return original(*args, **kwargs)

    patches.replace_everywhere(original, enable_and_init)


class _TorchFinder:
    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Return PyTorch's own specification, whose loader calls back after the import."""
        del path, target
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        from instrument.core.patching import spec_calling_back  # noqa: PLC0415

        return spec_calling_back(fullname, _wait_for_group)


if os.environ.get(VARIABLE) == "1" and any(map(os.environ.get, _RECORDERS)):
    sys.meta_path.insert(0, _TorchFinder())
