"""Trainers and networks for the tests of training."""
