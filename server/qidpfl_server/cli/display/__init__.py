"""What `serve` says to people: the next step, whom a task waits for, and what is wrong with an address."""
