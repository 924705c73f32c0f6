"""Run the notebook again, and keep what it puts out.

python docs/notebook.py
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "where-does-the-step-go.ipynb"


def executed() -> nbformat.NotebookNode:
    """Return the notebook as it is after it has been run, without the times at which it was."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(ROOT)}}
    # Through files, which nobody else may read, and not through ports.
    config = Config({"KernelManager": {"transport": "ipc"}})
    client = NotebookClient(notebook, resources=folder, record_timing=False, config=config)
    client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec}
    return notebook


def main() -> None:
    """Rewrite the notebook's outputs."""
    nbformat.write(executed(), NOTEBOOK)


if __name__ == "__main__":
    main()
