"""A typed client of the coordinator's API: numpy and httpx only."""
