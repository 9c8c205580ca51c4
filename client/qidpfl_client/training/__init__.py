"""What a client computes from its records: the mechanisms, per-record clipping, noise. Needs torch."""
