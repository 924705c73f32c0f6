"""Answers to what-if questions from a validated replay.

`checked_replay` replays and checks, `answers` and `ask` answer questions, `savings` does so for
findings. Others: critical paths, blocked sends.
"""
