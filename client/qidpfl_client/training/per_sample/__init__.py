"""Per-sample gradients and their clipping."""
