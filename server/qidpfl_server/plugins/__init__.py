"""Custom code that the operator names on the command line: rules and workloads."""
