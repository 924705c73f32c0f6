"""From the tables of reports to the ranks of a run."""
