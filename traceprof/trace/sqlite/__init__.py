"""Reads any SQLite database, a column at a time."""
