"""Numbers and judgement: a module for each analysis, all of one shape."""
