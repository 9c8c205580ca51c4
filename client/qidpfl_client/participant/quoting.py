"""What an owner may expect of a task before it enrols: from the public spec and what it assumes of the others."""

import math

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.planner.quote import FACTORS, Quote, quotes
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import Misconfigured
from ..owner import Owner

# Bounds of the privacy value that are wider say nothing of the other clients.
_WIDEST_VALUES = 1.5
_MOST_CLIENTS = 10_000


def quotes_of_task(
    spec: TaskSpec,
    owner: Owner,
    *,
    lifetime_rho: float,
    size: int,
    clients: int | None = None,
    others: tuple[float, float] | None = None,
) -> list[Quote]:
    """A quote for each report that the task accepts, from 20 % below to 20 % above the owner's value.

    The other clients are assumed to have the same size and privacy values that are spread evenly over `others`, or over
    the bounds of the task. Raises `Misconfigured` if the task says too little, or has no game.
    """
    if spec.game.policy in (RewardPolicy.NONE, RewardPolicy.OWN):
        raise Misconfigured(f"a task with policy {spec.game.policy} has no rewards that could be planned")
    partition = spec.workload.partition
    count = clients or spec.rounds.expected_clients or (None if partition is None else partition.clients)
    if count is None or not 2 <= count <= _MOST_CLIENTS:
        raise Misconfigured("the task does not say how many clients it expects: give --clients, 2 to 10000")
    bounds = spec.bounds
    low, high = others or (bounds.privacy_value_min, bounds.privacy_value_max)
    if others is None and high > low * _WIDEST_VALUES:
        raise Misconfigured(
            f"the task accepts privacy values from {low:g} to {high:g}, which says little of the other clients:"
            " give --others LOW:HIGH"
        )
    histogram = 0.0 if owner.no_histogram else min(owner.histogram_rho, spec.privacy.histogram_rho or 0.0)
    lifetime = min(lifetime_rho, spec.privacy.lifetime_rho or math.inf)
    own = Participant(
        privacy_value=owner.privacy_value,
        size=size,
        rho_cap=owner.rho_cap,
        remaining_rho=max(0.0, lifetime - histogram),
    )
    spread = [low + (high - low) * (place + 0.5) / (count - 1) for place in range(count - 1)]
    usual = max(0.0, (spec.privacy.lifetime_rho or math.inf) - histogram)
    accepted = [
        factor
        for factor in FACTORS
        if bounds.privacy_value_min <= factor * owner.privacy_value <= bounds.privacy_value_max
    ]
    if not accepted:
        allowed = f"{bounds.privacy_value_min:g} to {bounds.privacy_value_max:g}"
        raise Misconfigured(f"the task accepts privacy values from {allowed} only, not {owner.privacy_value:g}")
    try:
        return quotes(
            rules=spec.round_rules(),
            own=own,
            others=[Participant(privacy_value=value, size=size, remaining_rho=usual) for value in spread],
            rounds=spec.game.horizon,
            delta=spec.privacy.delta,
            histogram_rho=histogram,
            factors=accepted,
        )
    except ImpossibleArgument as error:
        raise Misconfigured(str(error)) from error
