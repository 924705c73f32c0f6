"""Text, JSON and HTML: a result in, a document out."""
