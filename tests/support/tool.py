"""A tool that takes NVTX ranges and counts them, for where Nsight Systems is not."""

import shutil
import subprocess
from pathlib import Path

from tests.support.needs import missing

SOURCE = Path(__file__).with_name("tool.c")


def build_tool(folder: Path) -> Path:
    """Compile the tool; return its library."""
    compiler = shutil.which("cc")
    if compiler is None:
        missing("a C compiler is not installed", "cc")
    library = folder / "tool.so"
    command = [compiler, "-shared", "-fPIC", "-w", "-O1", str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return library
