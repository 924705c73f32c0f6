"""The content of a report in any format: columns of events, names and metadata."""
