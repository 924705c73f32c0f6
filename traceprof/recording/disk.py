"""Space on the file system of a recording."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NO_SPACE = "no space left"
_BYTES = 1 << 17


def is_full(folder: Path) -> bool:
    """Return whether a small file does not fit into a folder any more, also by a quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    return False
