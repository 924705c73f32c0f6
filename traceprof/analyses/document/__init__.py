"""A result as plain records: what JSON, frames and stores have in common."""
