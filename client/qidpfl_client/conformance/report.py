"""What the conformance kit has found: one line for each check."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CheckVerdict(StrEnum):
    """The result of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True)
class CheckFinding:
    """One check with its verdict. `detail` says what was seen, or why nothing was checked."""

    check: str
    verdict: CheckVerdict
    detail: str = ""


@dataclass
class ConformanceReport:
    """The findings in the order of the checks."""

    findings: list[CheckFinding] = field(default_factory=list)

    def holds(self, check: str, detail: str = "") -> None:
        """Record that a check holds."""
        self.findings.append(CheckFinding(check, CheckVerdict.HOLDS, detail))

    def fails(self, check: str, detail: str) -> None:
        """Record that a check fails."""
        self.findings.append(CheckFinding(check, CheckVerdict.FAILS, detail))

    def not_checked(self, check: str, detail: str) -> None:
        """Record why something was not checked."""
        self.findings.append(CheckFinding(check, CheckVerdict.NOT_CHECKED, detail))

    def expect(self, check: str, condition: bool, wrong: str, detail: str = "") -> bool:
        """Record whether a condition holds; `wrong` says what was seen instead."""
        if condition:
            self.holds(check, detail)
        else:
            self.fails(check, wrong)
        return condition

    @property
    def passed(self) -> bool:
        """Whether no check fails, and at least one holds."""
        verdicts = [finding.verdict for finding in self.findings]
        return CheckVerdict.FAILS not in verdicts and CheckVerdict.HOLDS in verdicts

    def count(self, verdict: CheckVerdict) -> int:
        """The number of checks with this verdict."""
        return sum(finding.verdict is verdict for finding in self.findings)

    @property
    def summary(self) -> str:
        """The counts in one line."""
        return f"{self.count(CheckVerdict.HOLDS)} hold, {self.count(CheckVerdict.FAILS)} fail, " + (
            f"{self.count(CheckVerdict.NOT_CHECKED)} not checked"
        )

    def as_json(self) -> dict[str, Any]:
        """The whole report as JSON values."""
        findings = [
            {"check": finding.check, "verdict": finding.verdict.value, "detail": finding.detail}
            for finding in self.findings
        ]
        return {"passed": self.passed, "findings": findings}
