"""A result in, a document out: text, JSON, HTML, Markdown, Perfetto traces, tables."""
