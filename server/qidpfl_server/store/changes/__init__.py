"""How a process learns of the commits of other processes on the same store."""
