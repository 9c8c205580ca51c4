"""The specification of a task: its parts, the checks across them, and the whole."""
