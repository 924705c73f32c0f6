"""What the compute of a rank consists of."""
