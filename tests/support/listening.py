"""Listens to how far the reading of reports is."""


class RowCount:
    """How many rows were expected and read so far."""

    def __init__(self) -> None:
        self.expected = self.read = 0

    def expect(self, number: int) -> None:
        self.expected += number

    def advance(self, number: int) -> None:
        self.read += number
