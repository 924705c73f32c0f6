"""What tests of `instrument` share: a record of its ranges, and everything as it was afterwards."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

import instrument
from instrument import nvtx_ranges, training

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record `push …`, `pop`, `start …` and `end …`, as under a tool; steps count from 0."""
    events: list[str] = []

    def start(text: str) -> str:
        events.append(f"start {text}")
        return text

    monkeypatch.setattr(nvtx_ranges, "is_recording", lambda: True)
    monkeypatch.setattr(nvtx_ranges, "push", lambda text: events.append(f"push {text}"))
    monkeypatch.setattr(nvtx_ranges, "pop", lambda: events.append("pop"))
    monkeypatch.setattr(nvtx_ranges, "start", start)
    monkeypatch.setattr(nvtx_ranges, "end", lambda handle: events.append(f"end {handle}"))
    monkeypatch.setattr(training, "_numbers", itertools.count())
    return events


@pytest.fixture(autouse=True)
def _disabled_afterwards() -> Iterator[None]:
    """Leave no wrapper behind."""
    yield
    instrument.disable()
