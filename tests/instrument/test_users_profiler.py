"""Under the user's own torch.profiler the ranges are annotations in its trace."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.commands import output_of

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from traceprof import instrument

is_late = sys.argv[2] == "late"
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
originals = [dist.all_reduce]  # a list: names in modules are replaced, too
if not is_late:
    instrument.enable()
number = 0

def ready(profiled):
    global number
    profiled.export_chrome_trace(f"{sys.argv[1]}/{number}.json")
    number += 1

def is_original():
    return dist.all_reduce is originals[0]

cycles = schedule(wait=1, warmup=1, active=2, repeat=2)
own = profile(activities=[ProfilerActivity.CPU], schedule=cycles, on_trace_ready=ready)
if is_late:  # than its schedule, which holds methods of the profiler
    instrument.enable()
with own:
    for index in range(9):
        with instrument.step():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8)).sum()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss)
        print(is_original(), end=" ")
        own.step()
with torch.autograd.profiler.profile():  # as an exception leaves it
    print(is_original())
print(loss.item())
instrument.disable()
with profile(activities=[ProfilerActivity.CPU]) as after:
    print(is_original())
    with instrument.step():
        dist.all_reduce(loss)
print([event.name for event in after.events() if "step " in event.name or " seq=" in event.name])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("when", ["early", pytest.param("late", marks=pytest.mark.long)])
def test_each_cycle_of_a_schedule_has_ranges(tmp_path: Path, when: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out = output_of(sys.executable, program, tmp_path, when).splitlines()
    flags, loss, *rest = [line for line in out if "USDT" not in line]
    recorded = {2, 3, 6, 7}
    expected = [str(step not in recorded) for step in range(9)]
    assert flags.split() == [*expected, "False"]
    assert rest == ["True", "[]"]
    assert float(loss)
    for number, steps in enumerate(((2, 3), (6, 7))):
        events = json.loads((tmp_path / f"{number}.json").read_text())["traceEvents"]
        named = Counter(e["name"] for e in events if e.get("cat") == "user_annotation")
        assert [named[f"step {step}"] for step in steps] == [1, 1]
        assert sum(name.startswith("step ") for name in named) == 2
        for name in ("forward", "backward", "optimizer step"):
            assert named[name] == 2
        assert sum(name.startswith("all_reduce bytes=4 ") for name in named) == 2
        assert any(name.startswith("bucket index=0") for name in named)


@pytest.mark.long
def test_recording_after_it_has_ranges(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch, traceprof\n"
        "traceprof.instrument.enable()\n"
        "with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):\n"
        "    torch.nn.Linear(1, 1)(torch.ones(1))\n"
        "with traceprof.instrument.record(sys.argv[1]):\n"
        "    with traceprof.instrument.step():\n"
        "        torch.nn.Linear(1, 1)(torch.ones(1))\n"
    )
    output_of(sys.executable, program, tmp_path)
    output_of(sys.executable, "-m", "gzip", "-d", *tmp_path.glob("*.pt.trace.json.gz"))
    (trace,) = tmp_path.glob("*.pt.trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    names = [e["name"] for e in events if e.get("cat") == "user_annotation"]
    assert names.count("step 0") == names.count("forward") == 1
