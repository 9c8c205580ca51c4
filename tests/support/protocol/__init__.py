"""Helpers of the tests of the protocol."""
