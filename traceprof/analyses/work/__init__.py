"""Ranks compared by the work that they do."""
