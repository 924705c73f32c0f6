"""The assumptions: what may be assumed of a run, and how each changes the graph.

`table` declares each one once. `one_process` and `kernels` change what a process does; `run_change`
describes changes of edges between ranks, which `sends` and `bucket_cap` make.
"""
