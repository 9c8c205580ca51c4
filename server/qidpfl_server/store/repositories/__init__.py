"""Reads and writes of the tables, one module per subject."""
