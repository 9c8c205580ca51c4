"""Code that the operator names on the command line: reward and selection rules, workloads."""
