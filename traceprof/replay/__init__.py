"""Replays a run's dependency graph to answer what-if questions.

Others use `whatif` (questions), `savings` (of findings), `critical_path` and the types of results.
`checked_replay` replays and checks; `assumptions/` changes the graph of `graph/`.
"""
