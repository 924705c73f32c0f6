"""Activity of the host: launches, full queues, late launches, idle gaps, synchronization."""
