"""Pages, one module for each: an analysis and an address go in, what the page shows comes out."""
