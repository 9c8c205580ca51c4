"""Gradients of single records, clipped."""
