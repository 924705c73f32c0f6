"""Reads the traces of torch.profiler (Kineto): JSON, plain or compressed."""
