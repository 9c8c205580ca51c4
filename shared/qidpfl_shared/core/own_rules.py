"""The former name of `custom_rules`, with its former names. Users' rule files import it; kept for one release."""

from .custom_rules import CustomRuleFailed as OwnRuleFailed
from .custom_rules import PastRound, RewardQuestion, SelectionQuestion

__all__ = ["OwnRuleFailed", "PastRound", "RewardQuestion", "SelectionQuestion"]
