"""A model of streams, links and ranks, event by event."""
