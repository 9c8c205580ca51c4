"""The version of the protocol, what a spec requires of a client, and the digest of a spec.

A client ignores fields that it does not know. What it must not ignore is in `requires` of the spec: a client that does
not know one of these names cannot take part correctly, and says so with both versions.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..core.markets.design import MarketKind
from ..core.privacy.mechanisms import MechanismName
from .chain import digest_of_facts

# Minor versions add; a client of an earlier minor version still works unless `requires` names something new.
PROTOCOL_VERSION = "1.2"

# The answer to an announcement is `{"rho": …}`, or `{"join": true}` in a task without a game.
ANSWER_RHO, ANSWER_JOIN = "answer.rho", "answer.join"
# The task states the features of own data, so that every owner prepares the same.
DATA_COLUMNS, DATA_IMAGE = "data.columns", "data.image"
# `aggregation.weighting` has the value `optimal`. A client need not compute the weights, but those of earlier versions
# cannot read a spec with this value.
OPTIMAL_WEIGHTS = "aggregation.optimal_weights"
# Markets other than the contest: a client answers and checks by their rules.
MARKETS: dict[MarketKind, str] = {kind: f"market.{kind.value}" for kind in MarketKind if kind is not MarketKind.CONTEST}
KNOWN_REQUIREMENTS = frozenset(
    {
        *MARKETS.values(),
        *(ANSWER_RHO, ANSWER_JOIN, DATA_COLUMNS, DATA_IMAGE, OPTIMAL_WEIGHTS),
        *(f"mechanism.{name.value}" for name in MechanismName),
    }
)


def requirements(
    *,
    mechanism: str,
    plays: bool,
    data: str | None = None,
    optimal_weights: bool = False,
    market: MarketKind = MarketKind.CONTEST,
) -> tuple[str, ...]:
    """What a client must know to take part.

    It is the mechanism, how it answers, how it prepares own data, the weighting, and the market.

    >>> requirements(mechanism="gradient_once", plays=True)
    ('mechanism.gradient_once', 'answer.rho')
    """
    needed = (f"mechanism.{mechanism}", ANSWER_RHO if plays else ANSWER_JOIN)
    others = (data, OPTIMAL_WEIGHTS if optimal_weights else None, MARKETS.get(market))
    return (*needed, *(name for name in others if name is not None))


def unknown_requirements(names: Iterable[object]) -> list[str]:
    """The names that this version does not know, in their order."""
    return [str(name) for name in names if name not in KNOWN_REQUIREMENTS]


def refusal_of_spec(spec: object) -> str | None:
    """Why this version cannot take part in a task, from its spec as it was served; None if it can."""
    required = spec.get("requires") if isinstance(spec, Mapping) else None
    unknown = unknown_requirements(required) if isinstance(required, list) else []
    if not unknown or not isinstance(spec, Mapping):
        return None
    return (
        f"the task requires {', '.join(unknown)} of protocol {spec.get('protocol_version')}, and this client speaks"
        f" protocol {PROTOCOL_VERSION}: use a newer client"
    )


def spec_digest(spec: Mapping[str, Any]) -> str:
    """The digest of a spec, from its JSON as it is served: the SHA-256 of its canonical form (RFC 8785).

    A spec without a version belongs to a task of an earlier release and keeps the digest of that release.
    """
    if spec.get("protocol_version") is not None:
        return digest_of_facts(spec)
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
