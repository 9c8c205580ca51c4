"""The claims: what the paper says about its experiments, and how each claim is measured.

A claim consists of one or more comparisons on the same seeds and needs all of them. No results are stored here.
"""

from dataclasses import dataclass
from enum import StrEnum

from .verdicts import ClaimRule, Order

# Smaller differences in accuracy, in points, cannot be resolved with five seeds.
ACCURACY_RESOLUTION = 0.3
# Methods are alike if their accuracies differ by less than this, in points.
ACCURACY_MARGIN = 1.0
# Rewards and model costs are exact. Differences below this, in percent, do not support a claim.
MONEY_RESOLUTION = 1.0


class Metric(StrEnum):
    """The quantity that is compared."""

    ACCURACY = "accuracy"
    LEARNING = "mean accuracy over the rounds"
    REWARD = "reward"
    COST = "server cost"
    GROWTH = "growth of the reward"
    EPSILON = "ε of the worst client"
    CLIENT_REGRET = "largest gain of a client by another budget"
    SERVER_REGRET = "largest saving of the server by another reward"
    DISTANCE = "distance of best responses from other starts"
    GAIN = "gain of the client that lies"

    @property
    def unit(self) -> str:
        """The unit of a difference: points of accuracy, or percent of the second method's value.

        A regret is in percent of the utility or cost, the gain of a lie in percent of the mean payment of a client.
        """
        return "points" if self in (Metric.ACCURACY, Metric.LEARNING) else "%"


class Source(StrEnum):
    """Who makes the claim."""

    PAPER = "paper"
    CONTROL = "control"
    OURS = "ours"
    CUSTOM = "own"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One method compared with another by one metric.

    Growth and the checks of theorems have no second method: growth compares the last round with the first, and a check
    is a percentage that should be 0. With `beyond_iid` the effect is that of a
    Non-IID partition minus that of the IID partition.
    """

    metric: Metric
    first: str
    second: str = ""
    rule: ClaimRule
    beyond_iid: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim in our words, where it is made, and its comparisons."""

    identifier: str
    says: str
    where: str
    source: Source
    comparisons: tuple[Comparison, ...]


HIGHER_ACCURACY = ClaimRule(order=Order.HIGHER, amount=ACCURACY_RESOLUTION)
ALIKE = ClaimRule(order=Order.ALIKE, amount=ACCURACY_MARGIN)
LESS_MONEY = ClaimRule(order=Order.LOWER, amount=MONEY_RESOLUTION)
ARGMIN = ClaimRule(
    order=Order.LOWER,
    amount=0.0,
    because="by definition QI-DPFL pays the reward with the lowest cost for these clients",
)
BELOW_MAX = ClaimRule(
    order=Order.LOWER, amount=0.0, because="by definition Max pays the largest reward that a method may pay in a round"
)
IN_EACH_SEED = ClaimRule(order=Order.HIGHER, amount=0.0, each_seed=True)
LESS_IN_EACH_SEED = ClaimRule(order=Order.LOWER, amount=0.0, each_seed=True)
# A deviation on the grid must not gain more than this, in percent: money is rounded to micro-units.
NO_REGRET = ClaimRule(order=Order.NOT_HIGHER, amount=0.1, each_seed=True)
# A lie pays if it gains more than this, in percent of the mean payment.
LIE_PAYS = ClaimRule(order=Order.HIGHER, amount=MONEY_RESOLUTION)
LIE_DOES_NOT_PAY = ClaimRule(order=Order.NOT_HIGHER, amount=MONEY_RESOLUTION, each_seed=True)
DISCOUNT = ClaimRule(
    order=Order.HIGHER,
    amount=0.0,
    because="the discount alone makes later payments cheaper, by the factor π^(-1/2) per round, for any data",
)


def compared_by(metric: Metric, rule: ClaimRule, first: str, *seconds: str) -> tuple[Comparison, ...]:
    """The comparisons of one method with others by one metric."""
    return tuple(Comparison(metric=metric, rule=rule, first=first, second=second) for second in seconds)


PAPER_CLAIMS = (
    Claim(
        identifier="selection-accuracy",
        says="Keeping only clients near the reference makes the model more accurate than keeping all clients.",
        where="Section V-B, Figs. 3a–6a",
        source=Source.PAPER,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "fedavg-select", "fedavg"),
    ),
    Claim(
        identifier="selection-convergence",
        says="Keeping only clients near the reference makes the model learn faster.",
        where="Section V-B, Figs. 3a–6a",
        source=Source.PAPER,
        comparisons=compared_by(Metric.LEARNING, HIGHER_ACCURACY, "fedavg-select", "fedavg"),
    ),
    Claim(
        identifier="private-beats-fedavg",
        says="QI-DPFL with noise is more accurate and learns faster than FedAvg without noise.",
        where="Section V-B, Figs. 3a, 4a, 6a",
        source=Source.PAPER,
        comparisons=(
            *compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-dpfl", "fedavg"),
            *compared_by(Metric.LEARNING, HIGHER_ACCURACY, "qi-dpfl", "fedavg"),
        ),
    ),
    Claim(
        identifier="beats-fedavg-dp",
        says="QI-DPFL is more accurate than FedAvg-DP, because it selects.",
        where="Section V-B, Figs. 3b–6b",
        source=Source.PAPER,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-dpfl", "fedavg-dp"),
    ),
    Claim(
        identifier="fedavg-dp-lowest",
        says="FedAvg-DP is the least accurate of the four models.",
        where="Section V-B, Figs. 3a, 4a, 6a",
        source=Source.PAPER,
        comparisons=tuple(
            Comparison(metric=Metric.ACCURACY, rule=HIGHER_ACCURACY, first=first, second="fedavg-dp")
            for first in ("fedavg", "fedavg-select", "qi-dpfl")
        ),
    ),
    Claim(
        identifier="like-fedavg-select",
        says="QI-DPFL with noise is about as accurate as FedAvg-select without noise.",
        where="Section V-B, Figs. 4a–6a",
        source=Source.PAPER,
        comparisons=compared_by(Metric.ACCURACY, ALIKE, "qi-dpfl", "fedavg-select"),
    ),
    Claim(
        identifier="like-max-select",
        says="QI-DPFL is about as accurate as Max-select, which pays the largest reward in every round.",
        where="Section V-B, Figs. 3b–6b",
        source=Source.PAPER,
        comparisons=compared_by(Metric.ACCURACY, ALIKE, "qi-dpfl", "max-select"),
    ),
    Claim(
        identifier="lowest-cost",
        says="QI-DPFL has the lowest server cost of all strategies with the same clients.",
        where="Section V-B, Figs. 3c–6c",
        source=Source.PAPER,
        comparisons=compared_by(Metric.COST, ARGMIN, "qi-dpfl", "max-select", "random-select"),
    ),
    Claim(
        identifier="lowest-cost-everybody",
        says="QI-DPFL has a lower server cost than strategies that keep all clients.",
        where="Section V-B, Figs. 3c–6c",
        source=Source.PAPER,
        comparisons=compared_by(Metric.COST, LESS_MONEY, "qi-dpfl", "fedavg-dp", "max", "random"),
    ),
    Claim(
        identifier="less-reward-than-max",
        says="QI-DPFL pays less than Max.",
        where="Section V-B, Figs. 3d–6d",
        source=Source.PAPER,
        comparisons=compared_by(Metric.REWARD, BELOW_MAX, "qi-dpfl", "max-select", "max"),
    ),
    Claim(
        identifier="less-reward-than-random",
        says="QI-DPFL pays less than Random. (This depends on the range that Random draws from.)",
        where="Section V-B, Figs. 3d–6d",
        source=Source.PAPER,
        comparisons=compared_by(Metric.REWARD, LESS_MONEY, "qi-dpfl", "random-select", "random"),
    ),
    Claim(
        identifier="non-iid-advantage",
        says="The gain of QI-DPFL over FedAvg-DP is larger on Non-IID data than on IID data.",
        where="Section V-B, last paragraph",
        source=Source.PAPER,
        comparisons=(
            Comparison(
                metric=Metric.ACCURACY, first="qi-dpfl", second="fedavg-dp", rule=HIGHER_ACCURACY, beyond_iid=True
            ),
        ),
    ),
    Claim(
        identifier="reward-grows",
        says="The reward grows over the rounds because later rounds need better data.",
        where="Section IV-A, after Theorem 2",
        source=Source.PAPER,
        comparisons=(Comparison(metric=Metric.GROWTH, first="qi-dpfl", rule=DISCOUNT),),
    ),
    Claim(
        identifier="theorem-1",
        says="No client gains by another budget than that of the equilibrium (half to twice of it, 81 deviations).",
        where="Theorem 1",
        source=Source.PAPER,
        comparisons=(Comparison(metric=Metric.CLIENT_REGRET, first="qi-dpfl", rule=NO_REGRET),),
    ),
    Claim(
        identifier="theorem-2",
        says="The server saves nothing by another admissible reward (half to twice of it, 81 deviations).",
        where="Theorem 2",
        source=Source.PAPER,
        comparisons=(Comparison(metric=Metric.SERVER_REGRET, first="qi-dpfl", rule=NO_REGRET),),
    ),
    Claim(
        identifier="theorem-3",
        says="The equilibrium is unique: best responses from other starts end at the budgets of the round.",
        where="Theorem 3",
        source=Source.PAPER,
        comparisons=(Comparison(metric=Metric.DISTANCE, first="qi-dpfl", rule=NO_REGRET),),
    ),
    Claim(
        identifier="printed-beats-fedavg-dp",
        says="As printed, QI-DPFL is more accurate than FedAvg-DP for the same money.",
        where="Section V-B, with the paper's training and noise as printed",
        source=Source.PAPER,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "printed-qi-dpfl", "printed-fedavg-dp"),
    ),
    Claim(
        identifier="printed-selection-accuracy",
        says="As printed, keeping only clients near the reference makes the model more accurate.",
        where="Section V-B, with the paper's training as printed",
        source=Source.PAPER,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "printed-fedavg-select", "printed-fedavg"),
    ),
    Claim(
        identifier="printed-like-fedavg-select",
        says="As printed, QI-DPFL with noise is about as accurate as FedAvg-select without noise.",
        where="Section V-B, with the paper's training and noise as printed",
        source=Source.PAPER,
        comparisons=compared_by(Metric.ACCURACY, ALIKE, "printed-qi-dpfl", "printed-fedavg-select"),
    ),
)
