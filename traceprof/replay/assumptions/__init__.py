"""The assumptions: what may be assumed of a run, and how each changes the graph.

`table` declares each one once, and `assumption` reads them as they are written. `one_process`
changes the durations of a process, `run_change` the edges between ranks.
"""
