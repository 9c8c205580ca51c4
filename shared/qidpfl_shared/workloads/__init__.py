"""The workloads of tasks: data sets, their division in a testbed, and networks. Torch is imported only when needed."""
