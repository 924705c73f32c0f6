"""A store of analyses: one SQLite file with a row for each run, and its numbers as tables."""
