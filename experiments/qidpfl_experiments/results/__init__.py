"""A results folder: its tables and its other files."""
