"""The assumptions: what may be assumed of a run, and how each changes the graph.

`table` declares each one once. `one_process` and `slowdown` change what a process does; the others
change edges between ranks, as `run_change` describes them.
"""
