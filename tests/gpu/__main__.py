"""Record all programs on this machine: `python -m tests.gpu` prints a table in Markdown.

What it prints can be pasted into docs/testing.md. Without a GPU only what needs none is recorded.
"""

import platform
import shutil
import sys

import torch

from tests.support.programs.known_answers import DEVICE, NEED_GPU, PROGRAMS
from tests.support.recording import table


def main() -> None:
    tools = ["nsys", "torch"] if shutil.which("nsys") else ["torch"]
    names = [name for name in PROGRAMS if DEVICE == "cuda" or name not in NEED_GPU]
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else f"no GPU ({platform.machine()})"
    sys.stdout.write(f"PyTorch {torch.__version__}, {gpu}\n\n{table(names, tools)}\n")


if __name__ == "__main__":
    main()
