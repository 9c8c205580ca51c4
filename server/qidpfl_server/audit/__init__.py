"""What must hold in every store, at any moment: the checks behind `qidpfl-server audit`."""

from .report import Report
from .runner import audit

__all__ = ["Report", "audit"]
