"""Helpers that the tests share: processes, scripted clients, fakes, checks and synthetic data."""
