"""Renderers: an Analysis in, text, JSON or HTML out."""
