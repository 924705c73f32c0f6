"""Pages: one module each, with `layout(analysis, address)`."""
