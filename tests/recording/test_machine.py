"""The facts about a machine that choose the flags of a recording."""

from pathlib import Path

import pytest

from traceprof.recording.machine import (
    counters_restricted,
    network_cards,
    paranoid_level,
    permits_sampling,
    ptrace_scope,
)


def written(root: Path, name: str, text: str) -> Path:
    file = root / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("value", "is_restricted"), [("0", False), ("1", True), (None, None)], ids=str
)
def test_counters_are_for_administrators_if_the_driver_says_so(
    tmp_path: Path, value: str | None, is_restricted: bool | None
) -> None:
    lines = ["ModifyDeviceFiles: 1", "DeviceFileMode: 438"]
    if value is not None:
        lines.append(f"RmProfilingAdminOnly: {value}")
    root = written(tmp_path, "proc/driver/nvidia/params", "\n".join(lines))
    assert counters_restricted(root) is is_restricted


@pytest.mark.parametrize(("text", "level"), [("-1\n", -1), ("2\n", 2), ("", None), ("x", None)])
def test_the_kernel_says_what_may_be_sampled(tmp_path: Path, text: str, level: int | None) -> None:
    assert paranoid_level(written(tmp_path, "proc/sys/kernel/perf_event_paranoid", text)) == level


def test_up_to_level_2_own_processes_may_be_sampled() -> None:
    levels = (None, 2, 3)
    assert [permits_sampling(level, is_root=False) for level in levels] == [None, True, False]
    assert [permits_sampling(level, is_root=True) for level in levels] == [True] * 3


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    assert ptrace_scope(written(tmp_path, "proc/sys/kernel/yama/ptrace_scope", "1\n")) == 1
    bare = tmp_path / "bare"
    assert (paranoid_level(bare), ptrace_scope(bare), counters_restricted(bare)) == (None,) * 3
    assert network_cards(bare) == ()


def test_network_cards_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
    assert network_cards(tmp_path) == ("mlx5_0", "mlx5_1")
