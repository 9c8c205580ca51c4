"""Coordinators and clients that break a rule or fail on purpose."""
