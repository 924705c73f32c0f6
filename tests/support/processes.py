"""Programs that are run to their end, in processes of their own."""

import subprocess
from pathlib import Path
from typing import Any


def ended(*command: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
    """Return how a program ended, and what it printed; `how` is for `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def output_of(*command: str | Path, **how: Any) -> str:
    """Return what a program printed, which must end well."""
    done = ended(*command, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
