"""Reads SQLite databases, whatever is in them, a column at a time."""
