"""The dependency graph of a run, and its replay."""
