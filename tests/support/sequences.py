"""Sequences of names with planted periods."""

import numpy as np


def drawn(num: int, num_names: int, seed: int = 0, first: int = 0) -> list[int]:
    return [first + int(name) for name in np.random.default_rng(seed).integers(0, num_names, num)]


def noisy(sequence: list[int], share: float) -> list[int]:
    """Return a sequence some of whose names are another one."""
    is_noise = np.random.default_rng(7).random(len(sequence)) < share
    return [
        max(sequence) + 1 if other else name for name, other in zip(sequence, is_noise, strict=True)
    ]


def layers(num: int, head: int = 4) -> list[int]:
    """An iteration of equal layers of 57 kernels, and others at its end."""
    return drawn(57, 20) * num + [*range(70, 70 + head)]


WITHOUT_INSERTIONS = {
    "one kernel": ([1] * 10, 1),
    "plain": (drawn(40, 12) * 50, 40),
    "four": (drawn(40, 12) * 4, 40),
    "three are too few": (drawn(40, 12) * 3, None),
    "cut at both ends": ((drawn(40, 12) * 30)[17:-11], 40),
    "iteration of 32 layers": (layers(32) * 6, 57 * 32 + 4),
    "iteration of 100 layers": (layers(100) * 4, 57 * 100 + 4),
    "layers of one iteration": (layers(32), 57),
    "forward and backward": ((drawn(20, 9) * 24 + drawn(40, 11, 1) * 24) * 6, 1440),
    "outer loop of a solver": (([1] * 200 + [2]) * 20, 201),
    "accumulated gradients": ((drawn(100, 30) * 4 + [*range(200, 230)]) * 20, 430),
    "1 % noise": (noisy(drawn(100, 30) * 60, 0.01), 100),
    "5 % noise": (noisy(drawn(100, 30) * 60, 0.05), None),
    "random": (drawn(3000, 5), None),
    "random, many names": (drawn(3000, 100), None),
    "one name nine times of ten": (noisy([0] * 3000, 0.1), None),
    "an inner loop of 10 to 30": (
        [name for num in drawn(60, 20, first=10) for name in [*[1, 2, 3] * num, 4, 5]],
        None,
    ),
}
INSERTED = {
    "a log every tenth": ((drawn(40, 12) * 10 + [99, 98]) * 12, 40),
    "a log every tenth of a large one": ((drawn(341, 60) * 10 + [99, 98, 97]) * 8, 341),
    "checkpoints": (
        [name for num in range(100) for name in drawn(40, 12) + [99] * (num % 13 == 5)],
        40,
    ),
    "equal ones in turns": (
        [
            name
            for swaps in drawn(60, 2)
            for name in [*drawn(100, 90)[: 50 - swaps], *drawn(100, 90)[50 - swaps :][::-1]]
        ],
        None,
    ),
}


def named(sequence: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    return np.unique(sequence, return_inverse=True)[1].astype(np.uint16)
