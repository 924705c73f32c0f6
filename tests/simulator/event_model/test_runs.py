"""Runs of several reports: what they hold is what happened, as each machine's clock shows it."""

import numpy as np
import pytest

from sample_traces.simulator.event_model.engine import Capture, Node, seen
from sample_traces.simulator.scenarios.ranks import STRAGGLERS, training

pytestmark = pytest.mark.slow


def test_a_clock_that_is_ahead_and_fast() -> None:
    node = Node("a", 1_000, 50_000)  # 50 µs in a second
    assert node.shown(0) == 1_000
    assert node.shown(2_000_000_000) == 2_000_000_000 + 1_000 + 100_000


def test_a_report_holds_what_was_captured_in_its_own_time() -> None:
    result = training(np.random.default_rng(1), STRAGGLERS["balanced"], 0, is_labelled=True).run()
    node = Node("a", 7_000_000, 20_000)
    stop = result.end_ns * 3 // 4
    capture = Capture(node, (2, 3), 100_000_000, stop // 2, stop)
    found = seen(result, capture, np.random.default_rng(2))
    expected = [
        operation
        for operation in result.operations
        if operation.stream.process in (2, 3)
        and operation.start_ns >= stop // 2
        and operation.end_ns <= stop
    ]
    assert len(found.operations) == len(expected) > 100
    shown = [node.shown(operation.start_ns) - node.shown(100_000_000) for operation in expected]
    assert [operation.start_ns for operation in found.operations] == shown
    early = [
        node.shown(operation.end_ns) - node.shown(100_000_000) - other.end_ns
        for operation, other in zip(expected, found.operations, strict=True)
    ]
    assert min(early) == 0
    assert max(offset for offset in early if offset < 50_000) > 10_000
    assert {call.thread.process for call in found.calls} == {2, 3}
    assert all(call.end_ns >= call.start_ns for call in found.calls)
