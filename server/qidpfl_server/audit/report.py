"""The findings of an audit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..errors import DamagedState, StorageFull, StoreBusy
from ..store.database import translated_errors


@dataclass
class Report:
    """The violations that an audit found, and what it could not check."""

    checked: int = 0
    violations: list[str] = field(default_factory=list)
    not_checkable: list[str] = field(default_factory=list)

    def require(self, holds: bool, violation: str) -> None:
        self.checked += 1
        if not holds:
            self.violations.append(violation)

    @contextmanager
    def checking(self, place: str) -> Iterator[None]:
        """Report an error inside a check as a violation. Only a store or disk that cannot be reached ends the audit."""
        try:
            with translated_errors():
                yield
        except (StoreBusy, StorageFull, OSError):
            raise
        except DamagedState as error:
            self.require(False, f"{place}: {error}")
        except Exception as error:
            # Damaged values can lead to any error. The audit must go on and report the rest.
            self.require(False, f"{place}: cannot be checked: {type(error).__name__}: {error}")

    def lines(self) -> Iterator[str]:
        yield from (f"violated: {violation}" for violation in self.violations)
        yield from (f"not checkable: {reason}" for reason in self.not_checkable)
        yield f"{self.checked} checks, {len(self.violations)} violated"
