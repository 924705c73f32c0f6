"""In which row of a thread an event is drawn."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from traceprof.reports import tracks

Event = tuple[int, int]
EVENTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda event: (event[0], sum(event))),
    max_size=30,
).map(lambda events: sorted(events, key=lambda event: (event[0], -event[1])))


def columns(events: list[Event]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(events, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def nested(events: list[Event], most: int = 99) -> list[int]:
    return [int(lane) for lane in tracks.nested(*columns(events), most)]


def packed(events: list[Event], most: int = 99) -> list[int]:
    return [int(lane) for lane in tracks.packed(*columns(events), most)]


def test_what_is_deeper_than_the_last_row_is_in_it() -> None:
    assert nested([(0, 9), (1, 8), (2, 7), (3, 6)], most=2) == [0, 1, 1, 1]


@given(EVENTS)
@example([])
@example([(0, 9), (1, 4), (1, 2), (4, 6), (9, 12)])
@example([(0, 5), (2, 2), (2, 2), (5, 5), (5, 8)])  # a moment takes no room
@example([(0, 5), (0, 5)])  # equal ones are one in the other
def test_depth_is_how_many_are_open(events: list[Event]) -> None:
    expected = [
        sum(start < end and end > now for start, end in events[:index])
        for index, (now, _) in enumerate(events)
    ]
    assert nested(events) == expected


@given(EVENTS)
@example([])
@example([(10 * index, 10 * index + 15) for index in range(50)])
def test_packing_is_first_fit(events: list[Event]) -> None:
    # Row after row: take what starts after the end of what was taken before.
    expected, left, row = [0] * len(events), list(range(len(events))), 0
    while left:
        taken: list[int] = []
        for index in left:
            if not taken or events[index][0] >= events[taken[-1]][1]:
                taken.append(index)
                expected[index] = row
        left = [index for index in left if index not in taken]
        row += 1
    assert packed(events) == expected


def test_what_fits_nowhere_is_in_the_last_row() -> None:
    assert packed([(0, 9), (1, 9), (2, 9), (3, 9)], most=2) == [0, 1, 1, 1]
