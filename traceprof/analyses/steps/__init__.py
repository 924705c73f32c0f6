"""Training steps: their lengths, and the means of the steady ones."""
