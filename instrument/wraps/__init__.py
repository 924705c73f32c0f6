"""A module for each thing that is wrapped."""
