"""Work on a store besides serving it: open, check, back up, export."""
