"""The built-in data sets: how each is read from its files."""
