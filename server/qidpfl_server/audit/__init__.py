"""Checks of the invariants of a store, at any moment: the command `qidpfl-server audit`."""

from .report import Report
from .runner import audit

__all__ = ["Report", "audit"]
