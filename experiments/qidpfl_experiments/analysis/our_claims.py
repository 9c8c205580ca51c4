"""Our claims: controls of the paper's claims, our own methods, what a lie gains, and custom methods."""

from ..methods import Method
from .claims import (
    HIGHER_ACCURACY,
    IN_EACH_SEED,
    LESS_IN_EACH_SEED,
    LESS_MONEY,
    LIE_DOES_NOT_PAY,
    LIE_PAYS,
    Claim,
    Comparison,
    Metric,
    Source,
    compared_by,
)

_CONTROLS: tuple[Claim, ...] = (
    Claim(
        identifier="selection-against-blind",
        says="Clients near the reference give a more accurate model than equally many random clients.",
        where="our control for selection-accuracy",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "fedavg-select", "blind"),
    ),
    Claim(
        identifier="qi-dpfl-against-blind",
        says="QI-DPFL is more accurate than the same game and rewards with equally many random clients.",
        where="our control for beats-fedavg-dp",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-dpfl", "blind-dp"),
    ),
    Claim(
        identifier="beats-fair-fedavg-dp",
        says="QI-DPFL is more accurate than FedAvg-DP with the reward that is optimal for all clients.",
        where="our control for beats-fedavg-dp",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-dpfl", "fedavg-dp-optimal"),
    ),
    Claim(
        identifier="cheaper-than-fair-fedavg-dp",
        says="QI-DPFL has a lower server cost than FedAvg-DP with the reward that is optimal for all clients.",
        where="our control for lowest-cost-everybody",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.COST, LESS_MONEY, "qi-dpfl", "fedavg-dp-optimal"),
    ),
    Claim(
        identifier="union-accuracy",
        says="Selection by pooled labels is more accurate than QI-DPFL, which judges each client alone.",
        where="ours",
        source=Source.OURS,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-dpfl-union", "qi-dpfl"),
    ),
    Claim(
        identifier="union-reward",
        says="Selection by pooled labels needs less reward than QI-DPFL.",
        where="ours",
        source=Source.OURS,
        comparisons=compared_by(Metric.REWARD, LESS_MONEY, "qi-dpfl-union", "qi-dpfl"),
    ),
)


_MARKET_CLAIMS: tuple[Claim, ...] = (
    Claim(
        identifier="lowpass-accuracy",
        says="A low-pass of the average makes FedAvg-DP more accurate for the same money and ε.",
        where="our control for QI-auction+",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "fedavg-dp-lowpass", "fedavg-dp"),
    ),
    Claim(
        identifier="auction-accuracy",
        says="QI-auction is more accurate than FedAvg-DP for the same money.",
        where="ours",
        source=Source.OURS,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-auction", "fedavg-dp"),
    ),
    Claim(
        identifier="auction-epsilon",
        says="QI-auction has a lower ε of the worst client than FedAvg-DP for the same money, in every seed.",
        where="ours",
        source=Source.OURS,
        comparisons=compared_by(Metric.EPSILON, LESS_IN_EACH_SEED, "qi-auction", "fedavg-dp"),
    ),
    Claim(
        identifier="auction-plus-every-seed",
        says="QI-auction+ is above FedAvg-DP for the same money in every seed, with a lower ε of the worst client.",
        where="ours",
        source=Source.OURS,
        comparisons=(
            *compared_by(Metric.ACCURACY, IN_EACH_SEED, "qi-auction-plus", "fedavg-dp"),
            *compared_by(Metric.EPSILON, LESS_IN_EACH_SEED, "qi-auction-plus", "fedavg-dp"),
        ),
    ),
    Claim(
        identifier="auction-plus-accuracy",
        says="QI-auction+ is more accurate than FedAvg-DP for the same money.",
        where="ours",
        source=Source.OURS,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-auction-plus", "fedavg-dp"),
    ),
    Claim(
        identifier="auction-plus-against-lowpass",
        says="QI-auction+ is more accurate than FedAvg-DP with the same low-pass: market and weights gain.",
        where="our control for auction-plus-accuracy",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-auction-plus", "fedavg-dp-lowpass"),
    ),
    Claim(
        identifier="auction-plus-against-qi-dpfl",
        says="QI-auction+ is more accurate than QI-DPFL for the same money.",
        where="ours",
        source=Source.OURS,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-auction-plus", "qi-dpfl"),
    ),
    Claim(
        identifier="recommended-beats-printed",
        says="QI-DPFL with one proven noisy gradient per round is more accurate than QI-DPFL as printed.",
        where="ours",
        source=Source.OURS,
        comparisons=compared_by(Metric.ACCURACY, HIGHER_ACCURACY, "qi-dpfl", "printed-qi-dpfl"),
    ),
    Claim(
        identifier="contest-lie-pays",
        says="In the contest, a client that reports 20 % less than its privacy value earns more.",
        where="ours, about the paper's incentive compatibility",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.GAIN, LIE_PAYS, "contest-low", "contest-honest"),
    ),
    Claim(
        identifier="contest-high-lie",
        says="In the contest, a client that reports 20 % more than its privacy value gains nothing.",
        where="ours, about the paper's incentive compatibility",
        source=Source.CONTROL,
        comparisons=compared_by(Metric.GAIN, LIE_DOES_NOT_PAY, "contest-high", "contest-honest"),
    ),
    *(
        Claim(
            identifier=f"{market}-lies-do-not-pay",
            says=f"In the {market}, a client that reports 20 % less or more than its privacy value gains nothing.",
            where="ours, about incentive compatibility",
            source=Source.OURS,
            comparisons=tuple(
                Comparison(
                    metric=Metric.GAIN, rule=LIE_DOES_NOT_PAY, first=f"{market}-{lie}", second=f"{market}-honest"
                )
                for lie in ("low", "high")
            ),
        )
        for market in ("auction", "menu")
    ),
)


OUR_CLAIMS = (*_CONTROLS, *_MARKET_CLAIMS)


def claims_about(custom: Method) -> tuple[Claim, ...]:
    """The comparisons of a custom method with QI-DPFL and FedAvg-DP: accuracy, reward, cost and ε."""
    wanted = (
        ("accuracy", Metric.ACCURACY, HIGHER_ACCURACY, "is more accurate than"),
        ("reward", Metric.REWARD, LESS_MONEY, "pays less than"),
        ("cost", Metric.COST, LESS_MONEY, "has a lower server cost than"),
        ("epsilon", Metric.EPSILON, LESS_MONEY, "has a lower ε of the worst client than"),
    )
    others = (("", "QI-DPFL", "qi-dpfl"), ("-fedavg-dp", "FedAvg-DP", "fedavg-dp"))
    return tuple(
        Claim(
            identifier=f"{custom.name}-{suffix}{mark}",
            says=f"{custom.title} {does} {title}.",
            where="custom method",
            source=Source.CUSTOM,
            comparisons=compared_by(metric, rule, custom.name, name),
        )
        for mark, title, name in others
        for suffix, metric, rule, does in wanted
    )
