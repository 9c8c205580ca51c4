"""The invariants that the audit checks, one module per subject."""
