"""The dependency graph of a run, and its replay.

`columns` holds calls and operations; `host_waits`, `stream_waits` and `hidden_waits` find what they
wait for; `process_graph` makes nodes and edges of it, `weights` weighs these, and `run_graph` joins
processes by their collectives. `longest_path` replays.
"""
