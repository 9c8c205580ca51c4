"""The rules of one small task; tests of the core start from them and change what they are about."""

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.privacy.mechanisms import GradientOnceMechanism
from qidpfl_shared.core.reward import CostModel, RewardPolicy, Weighting
from qidpfl_shared.core.round_rules import RoundRules

COST_MODEL = CostModel(
    dimension=650,
    horizon=20,
    accuracy_weight=0.5,
    smoothness=10,
    convexity=0.03,
    gradient_bound=1,
    discount=0.93,
)
RULES = RoundRules(
    policy=RewardPolicy.OPTIMAL,
    mechanism=GradientOnceMechanism(clip_norm=1.0),
    weighting=Weighting.SIZE,
    cost_model=COST_MODEL,
    privacy_weight=30,
    min_share=0.3,
    min_clients=3,
    min_updates=3,
    rho_max=0.5,
    reward_max_micro=1000 * MICRO,
)
