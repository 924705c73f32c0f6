"""A run as a Perfetto trace: what the ranks did, on one clock, with the findings beside it."""
