"""The built-in data sets: one module per file format reads them."""
