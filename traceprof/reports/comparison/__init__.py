"""A comparison as text, JSON, Markdown, JUnit XML, HTML and annotations."""
