"""Slow questions of pages, answered in the background so that no page waits."""
