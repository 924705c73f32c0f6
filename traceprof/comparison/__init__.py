"""Compares two recordings, or several of each: did a change help, and where."""
