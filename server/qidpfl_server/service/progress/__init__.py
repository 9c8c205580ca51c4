"""How a task goes on: whom it waits for, its results so far, and the log lines about it."""
