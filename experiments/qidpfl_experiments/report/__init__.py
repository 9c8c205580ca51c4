"""The report: figures, HTML page, README and claims, written from the tables."""
