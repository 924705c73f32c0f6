"""Which module of a model got slower: the one that was made slower, and those around it."""

import random
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.claims import OPTIONS
from tests.support.commands import printed
from tests.support.selection import long_after
from traceprof.comparison.ask import compare
from traceprof.documents.comparison import Comparison

NUM_STEPS = 24
KERNELS = {"net.embed": 20_000, "net.layer.mlp": 40_000, "net.layer.norm": 10_000}


def recorded(path: Path, seed: int, kernels: dict[str, int]) -> Path:
    """Write steps in which each module launches a kernel of about such a length."""
    chance = random.Random(seed)
    builder = TraceBuilder()
    for step in range(NUM_STEPS):
        begin = at = 200_000 * step
        builder.nvtx(f"step {step}", begin, begin + 190_000)
        for module, usual in kernels.items():
            length = round(usual * chance.uniform(0.98, 1.02))
            parts = module.split(".")
            for depth in range(len(parts)):
                path_of = ".".join(parts[: depth + 1])
                builder.nvtx(f"module {path_of}", at + depth, at + 1000 - depth)
            builder.kernel(at + 2000, at + 2000 + length, "gemm", launch=(at + 100, at + 200))
            at += 50_000
    return builder.write(path)


def compared(tmp_path: Path, before: dict[str, int], after: dict[str, int]) -> Comparison:
    sides = [
        recorded(tmp_path / f"{seed}.sqlite", seed, kernels)
        for seed, kernels in enumerate((before, after))
    ]
    return compare(sides[0], sides[1], options=OPTIONS)


def test_the_module_that_got_slower_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, KERNELS, KERNELS | {"net.layer.mlp": 44_000})
    changes = {change.module: change for change in found.modules}
    paths = ["net", "net.layer", "net.layer.mlp", "net.layer.norm", "net.embed"]
    assert set(changes) == set(paths)
    assert [change.module for change in found.modules][:3] == paths[:3]
    assert changes["net.layer.mlp"].change_ns == pytest.approx(4000, rel=0.2)
    slower = {path for path, change in changes.items() if change.is_significant}
    assert slower == set(paths[:3])
    for path in paths[:2]:
        inside = [
            change.change_ns
            for name, change in changes.items()
            if name.rpartition(".")[0] == path
        ]  # fmt: skip
        assert changes[path].change_ns == pytest.approx(sum(inside), abs=5)
    assert sum(change.change_ns for change in found.kernels) == pytest.approx(
        changes["net"].change_ns, abs=5
    )


def test_no_module_is_slower_by_chance(tmp_path: Path) -> None:
    found = compared(tmp_path, KERNELS, KERNELS)
    assert len(found.modules) == 5
    assert not any(change.is_significant for change in found.modules)


def test_a_module_of_one_side(tmp_path: Path) -> None:
    after = {name: length for name, length in KERNELS.items() if name != "net.embed"}
    found = compared(tmp_path, KERNELS, after | {"net.rotary": 7000})
    before_ns = {change.module: change.before_ns for change in found.modules}
    after_ns = {change.module: change.after_ns for change in found.modules}
    assert before_ns["net.embed"] == pytest.approx(20_000, rel=0.02)
    assert after_ns["net.embed"] is None
    assert before_ns["net.rotary"] is None
    assert after_ns["net.rotary"] == pytest.approx(7000, rel=0.02)


def test_nothing_where_a_side_knows_no_modules(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one.sqlite", 0, KERNELS)
    other = TraceBuilder().kernel(0, 100).kernel(200, 300).write(tmp_path / "other.sqlite")
    assert not compare(one, other, options=OPTIONS).modules


@pytest.mark.parametrize("output_format", long_after(2, ["text", "html", "markdown", "json"]))
def test_all_formats_have_them(tmp_path: Path, output_format: str) -> None:
    one = recorded(tmp_path / "one.sqlite", 0, KERNELS)
    other = recorded(tmp_path / "other.sqlite", 1, KERNELS | {"net.layer.mlp": 60_000})
    assert "net.layer.mlp" in printed("compare", one, other, "--format", output_format)
