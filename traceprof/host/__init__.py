"""What the host did: launches, full queues, late launches, idle gaps, synchronization."""
