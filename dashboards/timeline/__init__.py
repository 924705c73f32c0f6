"""The timeline: rows, tiles, details and search."""
