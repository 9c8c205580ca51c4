"""The journal of a data owner: what was reserved, released and paid."""
