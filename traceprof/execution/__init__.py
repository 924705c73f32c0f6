"""Where an analysis runs: in this process, in several, or on a cluster."""
