"""The page of results: its data, its static files, and a server on a loopback address."""
