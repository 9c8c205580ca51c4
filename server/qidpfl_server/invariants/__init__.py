"""What must hold in every store, at any moment: the checks behind `qidpfl-server audit`."""

from .auditing import audit
from .report import Report

__all__ = ["Report", "audit"]
