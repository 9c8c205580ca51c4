"""The former name of `custom_rules`, kept for one release so that users' rule files keep working."""

from .custom_rules import OwnRuleFailed, PastRound, RewardQuestion, SelectionQuestion

__all__ = ["OwnRuleFailed", "PastRound", "RewardQuestion", "SelectionQuestion"]
