"""From tables to figures and texts."""
