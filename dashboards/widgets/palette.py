"""Colours of kinds of work, the same on every page, which colour-blind readers can distinguish.

M. Okabe, K. Ito: Color Universal Design, https://jfly.uni-koeln.de/color/.
Surfaces, text and lines differ between light and dark: they are variables of `assets/style.css`.
"""

from __future__ import annotations

GREEN = "#009E73"
VERMILLION = "#D55E00"
ORANGE = "#E69F00"
BLUE = "#0072B2"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
YELLOW = "#F0E442"
GREY = "#999999"  # not one of the eight, for what is absent

COMPUTE = GREEN
COMMUNICATION = VERMILLION
COPY = ORANGE
IDLE = GREY
HOST = SKY
NVTX = PURPLE
MARK = YELLOW
SELECTED = BLUE
STALLED = VERMILLION

PARTS: tuple[tuple[str, str, str], ...] = (
    ("compute_ns", "compute", COMPUTE),
    ("exposed_communication_ns", "exposed communication", COMMUNICATION),
    ("exposed_copy_ns", "exposed copy", COPY),
    ("idle_ns", "idle", IDLE),
)
"""The parts of a window that add up to it: field of `Measures`, name, colour."""

CATEGORIES = {
    "matmul": BLUE, "attention": PURPLE, "convolution": SKY, "normalization": YELLOW,
    "elementwise": GREEN, "reduction": "#8C6D31", "optimizer": ORANGE, "communication": VERMILLION,
    "other": GREY,
}  # fmt: skip
"""Colours of kernels by what they do."""
