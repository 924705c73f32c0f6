"""Records its own steps with torch.profiler, and ends by a signal if asked to.

`recorded.py FOLDER [STEP [SIGNAL]]`: marks steps, of which 2 to 4 are to be recorded; in this step
it gets this signal, by default SIGTERM. With SHAPES in the environment it records shapes.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

import instrument


def main() -> None:
    end_in = int(sys.argv[2]) if len(sys.argv) > 2 else None
    instrument.record(sys.argv[1], steps=(2, 5), shapes="SHAPES" in os.environ)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(7):
        with instrument.step():
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            if number == end_in:
                os.kill(os.getpid(), int(sys.argv[3]) if len(sys.argv) > 3 else signal.SIGTERM)
    sys.stdout.write(f"{signal.getsignal(signal.SIGTERM) is signal.SIG_DFL}\n")


if __name__ == "__main__":
    main()
