"""Queues between threads: the stages of a loader, and threads that bring batches."""
