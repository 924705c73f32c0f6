"""The assumptions: what may be assumed of a run, and how each changes the graph."""
