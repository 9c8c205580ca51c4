"""From tables to statistics and verdicts."""
