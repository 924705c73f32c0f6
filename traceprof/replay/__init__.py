"""Replays a run's dependency graph to answer what-if questions."""
