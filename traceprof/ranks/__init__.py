"""Comparison of ranks: matching, clocks, arrivals, waits, transfers, lateness, causes."""
