"""The rounds of a task: planning, submissions, the weights of updates, aggregation, settlement and payments."""
