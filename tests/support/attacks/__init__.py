"""A search for models and neighbouring data sets that break a privacy claim, and an empirical audit of releases."""
