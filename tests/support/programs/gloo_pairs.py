"""Pairs of ranks that make small all-reduces over Gloo, all pairs at once.

    python tests/support/programs/gloo_pairs.py PAIRS CLOCKS.json

Each pair is a process group and makes 1024 all-reduces of a 10×10 tensor, one after the other, each
in a label that `traceprof` reads. What the ranks' own clocks say is written as JSON: for each rank
the ns of each all-reduce, and with its label around it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import instrument
from traceprof import labels

COUNT = 1024
SIDE = 10
_WARM_UP = 20


def main(pairs: int, clocks: Path) -> None:
    """Run the ranks, and gather what their clocks say."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(2 * pairs) as pool:
        facts = list(pool.imap_unordered(partial(_rank, pairs, folder), range(2 * pairs)))
        pool.close()  # a process that is terminated leaves nsys nothing
        pool.join()
    clocks.write_text(json.dumps(sorted(facts, key=itemgetter("rank"))))


def _rank(pairs: int, folder: str, rank: int) -> dict[str, Any]:
    import torch  # noqa: PLC0415  (seconds, which the process that starts the ranks does without)
    from torch import distributed  # noqa: PLC0415

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2 * pairs
    )
    groups = [distributed.new_group([2 * pair, 2 * pair + 1]) for pair in range(pairs)]
    group = groups[rank // 2]
    tensor = torch.randn(SIDE, SIDE)
    for _ in range(_WARM_UP):
        distributed.all_reduce(tensor, group=group)
    facts = {"bytes": str(tensor.nbytes), "dtype": "float32", "group": group.group_name}
    facts |= {"rank": str(rank), "size": "2"}
    inside, outside = [], []
    distributed.barrier()
    for number in range(COUNT):
        label = str(labels.Label("all_reduce", {**facts, "seq": str(number)}))
        before = time.perf_counter_ns()
        with instrument.annotate(label):
            begin = time.perf_counter_ns()
            distributed.all_reduce(tensor, group=group)
            inside.append(time.perf_counter_ns() - begin)
        outside.append(time.perf_counter_ns() - before)
    distributed.barrier()
    distributed.destroy_process_group()
    return {"rank": rank, "group": group.group_name, "inside_ns": inside, "outside_ns": outside}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
