"""Results and events as pandas frames: units in column names, categories for names."""
