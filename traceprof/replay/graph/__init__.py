"""The dependency graph of a run, and its replay.

`columns` and the `waits` modules read a process; `process_graph` cuts it into pieces, `run_graph`
joins processes, `weights` gives each edge its time, and `longest_path` solves the graph.
"""
