"""The former name of `custom_rules`, with its former names: a separate module, because users' rule files import it.

It stays for one release.
"""

from .custom_rules import CustomReward as OwnReward
from .custom_rules import CustomRuleFailed as OwnRuleFailed
from .custom_rules import CustomSelect as OwnSelect
from .custom_rules import PastRound, RewardQuestion, SelectionQuestion

__all__ = ["OwnReward", "OwnRuleFailed", "OwnSelect", "PastRound", "RewardQuestion", "SelectionQuestion"]
