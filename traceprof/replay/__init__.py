"""Replays a run's dependency graph to answer what-if questions.

Entry points: `whatif` answers questions, `savings` says what a step gains without a finding, and
`critical_path` what determines its length. `results` has the types of their answers.
`checked_replay` replays and checks; `assumptions/` changes the graph of `graph/`.
"""
