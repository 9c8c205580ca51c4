"""Runs methods as real tasks on a live coordinator."""
