"""Analyses: small modules of one shape, each with REQUIRES, run and findings."""
