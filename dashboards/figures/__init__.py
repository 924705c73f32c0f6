"""Charts: pure functions from what analyses measured to plotly figures, a module for each page."""
