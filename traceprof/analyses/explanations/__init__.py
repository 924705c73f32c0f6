"""The pages of findings in Markdown, and the values that fill them in."""
