"""Work on a store besides serving it: open, check, back up, export, and the files of tokens and models."""
