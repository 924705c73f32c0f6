"""Ranks against each other: arrivals, matching, clocks, waits, transfers, lateness, causes."""
