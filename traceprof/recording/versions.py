"""Versions of the tools that a recording depends on, and incompatible ones; imports none."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

_CUDA = re.compile(r"^cuda\b[^=]*=\s*'([^']+)'", re.MULTILINE)
_MIN_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""Of NVIDIA's CUDA compatibility guide: the oldest Linux driver for each major version."""

MIN_TORCH = (2, 4)


@dataclass(frozen=True)
class Versions:
    """Versions as texts; empty for missing tools and unknown versions."""

    nsys: str = ""  # Nsight Systems
    driver: str = ""  # NVIDIA's driver
    cuda: str = ""  # which CUDA PyTorch was built for
    torch: str = ""  # PyTorch
    nccl: str = ""  # the NCCL that came with it
    nvtx: str = ""  # the package for ranges of one's own
    nsys_cuda: str = ""  # the newest CUDA that this Nsight Systems knows


def find_versions(nsys: str, driver: str, nsys_cuda: str) -> Versions:
    """Return the versions in this Python's environment.

    Args:
        nsys: version of Nsight Systems.
        driver: version of the driver.
        nsys_cuda: the newest CUDA that Nsight Systems knows.
    """
    nccl = (_installed(f"nvidia-nccl-cu{major}") for major in (13, 12, 11))
    return Versions(
        nsys,
        driver,
        _cuda_of_torch(),
        _installed("torch"),
        next(filter(None, nccl), ""),
        _installed("nvtx"),
        nsys_cuda,
    )


def misfits(versions: Versions) -> list[str]:
    """Return sentences about incompatible versions, and what to do about them."""
    sentences = []
    cuda, driver = numbers(versions.cuda), numbers(versions.driver)
    needed = _MIN_DRIVERS.get(cuda[0]) if cuda else None
    if needed and driver and driver < needed:
        sentences.append(
            f"PyTorch is built for CUDA {versions.cuda}, which needs driver {needed[0]}.{needed[1]}"
            f" or later, and {versions.driver} is loaded: install another PyTorch or driver"
        )
    if is_cuda_too_new(versions):
        sentences.append(
            f"GPU work may be lost: this nsys knows CUDA up to {versions.nsys_cuda}, and PyTorch is"
            f" built for CUDA {versions.cuda}: install the Nsight Systems that came with that CUDA,"
            " or a later one, or record with --with torch"
        )
    if versions.torch and numbers(versions.torch) < MIN_TORCH:
        sentences.append(f"instrument needs torch 2.4 or later, and {versions.torch} is installed")
    return sentences


def is_cuda_too_new(versions: Versions) -> bool:
    """Return whether PyTorch's CUDA is newer than what nsys knows, where there is a driver."""
    known = numbers(versions.nsys_cuda)[:2]
    return bool(versions.driver and known) and known < numbers(versions.cuda)[:2]


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: `2.13.0+cpu` is (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cuda_of_torch() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return ""
    match = _CUDA.search(text)
    return match.group(1) if match else ""
