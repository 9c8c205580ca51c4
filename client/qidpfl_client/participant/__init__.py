"""A client in a task: it enrols, bids, trains, uploads, and checks the coordinator."""
