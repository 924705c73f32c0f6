"""When communication was ready: against the reference in plain Python."""
