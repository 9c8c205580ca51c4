"""Many participants in one process, for testbeds."""
