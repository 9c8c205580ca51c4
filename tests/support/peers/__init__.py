"""Peers that are not real coordinators: scripted, hostile, or a proxy."""
