"""The gradient buckets of DistributedDataParallel."""
