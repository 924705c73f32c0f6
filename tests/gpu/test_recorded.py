"""Recordings of programs with known answers, on a GPU; what needs none is recorded without."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.support.programs.known_answers import NEED_GPU, PROGRAMS
from tests.support.recording import record_and_check

pytestmark = pytest.mark.long


@pytest.mark.parametrize("tool", ["nsys", "torch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_report_says_what_the_program_did(tmp_path: Path, name: str, tool: str) -> None:
    if name in NEED_GPU and not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU with CUDA")
    if tool == "nsys" and shutil.which("nsys") is None:
        pytest.skip("nsys is not on PATH")
    record_and_check(name, tool, tmp_path)
