"""Reads and writes the SQLite exports of Nsight Systems."""
