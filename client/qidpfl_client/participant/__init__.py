"""A data owner's part in a task: enrol, bid, train, upload, and check the coordinator."""
