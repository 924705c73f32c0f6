"""File to tables: opening reports and reading their columns."""
