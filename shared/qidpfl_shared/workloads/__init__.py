"""What a task learns: data sets, how a testbed divides them, and networks. Torch is loaded only where it is needed."""
