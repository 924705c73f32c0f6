"""The three JSON documents: analysis, comparison and what-if."""
