"""The commands `calibrate` and `plan`, and how they show an answer."""
