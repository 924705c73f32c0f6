"""Runs a test's program on several ranks."""

import json
import multiprocessing
from pathlib import Path
from typing import Any, Protocol

import pytest
from torch.multiprocessing import start_processes  # type: ignore[attr-defined]

from tests.support.once import once


class Program(Protocol):
    """Is one of the ranks; writes what it saw to `<rank>.json` in the folder."""

    __module__: str

    def __call__(self, rank: int, store: str, folder: Path) -> None: ...


def run(program: Program, size: int, factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run the program on this many ranks, once for all workers; return what each saw.

    Importing PyTorch takes longer than all else, so it is imported once: by the server that the
    ranks are forked from. FSDP and functional collectives use TorchDynamo.
    """

    def start(folder: Path) -> None:
        multiprocessing.set_forkserver_preload([program.__module__, "torch._dynamo"])
        arguments = (str(folder / "store"), folder)
        start_processes(program, arguments, nprocs=size, start_method="forkserver")  # type: ignore[no-untyped-call]

    folder = once(factory, program.__module__, start)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
