"""Local training: mechanisms, per-record clipping and noise. Needs torch."""
