"""A typed client of the coordinator's HTTP API. Needs numpy and httpx, not torch."""
