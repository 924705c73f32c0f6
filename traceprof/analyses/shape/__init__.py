"""The shape of an analysis: results by rank, numbers and their meaning."""
