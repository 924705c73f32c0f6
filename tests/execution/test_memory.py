"""Tests of `execution.memory`."""

import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HEAP = """
import re, sys
import numpy as np
from traceprof.execution.memory import (
    drop_freed_memory, give_freed_memory_back, keep_freed_memory,
)

def heap_kb():
    text = open("/proc/self/smaps").read()
    heaps = re.findall(r"\\[heap\\]\\n(.*?)VmFlags", text, re.DOTALL)
    return [
        sum(int(re.search(rf"{key}: +(\\d+) kB", heap)[1]) for heap in heaps)
        for key in ("Rss", "AnonHugePages")
    ]

def used_kb():
    arrays = [np.ones(1 << 20, np.uint8) for _ in range(40)]
    return heap_kb()[1]

if sys.argv[1] == "kept":
    keep_freed_memory()
of_first = used_kb()
kept = heap_kb()[0]
drop_freed_memory()
dropped = heap_kb()[0]
of_second = used_kb()
give_freed_memory_back()
print(of_first, kept, dropped, of_second, heap_kb()[0])
"""


def kilobytes(settings: str) -> list[int]:
    """Return what a process of its own prints."""
    script = [sys.executable, "-c", HEAP, settings]
    printed = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    return [int(number) for number in printed.split()]


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="the system gives huge pages always or never",
)
def test_commands_have_huge_pages_and_give_memory_back() -> None:
    first, kept, dropped, second, given_back = kilobytes("kept")
    assert min(first, second) > 20_000
    assert kept > 40_000
    assert max(dropped, given_back) < 20_000
    assert kilobytes("as they are")[:4:3] == [0, 0]
