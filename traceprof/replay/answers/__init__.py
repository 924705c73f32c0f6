"""Answers to what-if questions from a validated replay."""
