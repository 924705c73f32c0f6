"""What a report holds, whatever its format: columns of events, names and metadata."""
