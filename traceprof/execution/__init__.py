"""Runs analyses in this process, in several, or on a cluster."""
