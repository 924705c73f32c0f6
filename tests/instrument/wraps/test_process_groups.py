"""Arguments of methods of process groups: options at the end, or by their name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from instrument.wraps import process_groups

ONE = torch.ones(1)


@pytest.mark.parametrize("is_async", [True, False])
def test_arguments_by_place_and_by_keyword_are_described_alike(is_async: bool) -> None:
    describe = process_groups._reader(0, "tensors")
    group: Any = object()
    options = SimpleNamespace(asyncOp=is_async)
    by_place = describe(group, [ONE], options)
    by_keyword = describe(group, tensors=[ONE], opts=options)
    assert [*by_place[1]] == [*by_keyword[1]]
    assert (by_place[0], by_place[2:]) == (by_keyword[0], by_keyword[2:])
    assert by_place[-2:] == (False, is_async)  # it is not split
