"""What the strategy and a paid app say to each other, as JSON in the records of Flower.

The strategy asks each node for its profile (message type `query`), and sends the invited nodes the offer of a round
with the model (`train`). A node answers with its budget and its update, or with the reason why it declines.
"""

import json
from dataclasses import dataclass, replace

from pydantic import Field

from qidpfl_client.journal.entries import SeenOffer
from qidpfl_shared.core.privacy.account import PrivacyAccount, Release
from qidpfl_shared.protocol.fields import Message, Tuple
from qidpfl_shared.protocol.messages import Profile
from qidpfl_shared.protocol.wire import Vector32

# The names of the records in the content of a message and in the state of a node.
TERMS, UPDATE, STATE = "qidpfl", "update", "qidpfl"


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """What a node answers to an offer: a budget with an update, or why it declines."""

    rho: float = 0.0
    update: Vector32 | None = None
    declined: str | None = None


class StoredRelease(Message):
    """A release that a node has charged. All of them are proven or accepted; a missing `proven_rho` is no guarantee."""

    name: str
    mechanism: str
    rho: float = Field(ge=0)
    proven_rho: float | None = Field(default=None, ge=0)


class NodeState(Message):
    """What a node keeps between its calls, in the state of its Flower context.

    It lives as long as the run of Flower. The spec is pinned by its digest with the profile.
    """

    spec: str
    spec_digest: str
    profile: Profile
    releases: Tuple[StoredRelease] = ()
    # The terms of the latest round, as JSON.
    latest: str | None = None

    def account(self, *, lifetime_rho: float, accept_unproven: bool) -> PrivacyAccount:
        """The releases of this run, under the owner's limit."""
        releases = tuple(
            Release(
                name=one.name,
                mechanism=one.mechanism,
                rho=one.rho,
                proven_rho=float("inf") if one.proven_rho is None else one.proven_rho,
            )
            for one in self.releases
        )
        return PrivacyAccount(lifetime_rho=lifetime_rho, accept_unproven=accept_unproven, releases=releases)

    def with_release(self, release: Release) -> "NodeState":
        """The state with one more release."""
        proven = None if release.unprotected else release.proven_rho
        stored = StoredRelease(name=release.name, mechanism=release.mechanism, rho=release.rho, proven_rho=proven)
        return self.model_copy(update={"releases": (*self.releases, stored)})

    @property
    def latest_offer(self) -> SeenOffer | None:
        """The terms of the latest round that this node has seen."""
        return None if self.latest is None else SeenOffer(**json.loads(self.latest))

    def with_offer(self, offer: SeenOffer) -> "NodeState":
        """The state after an announcement."""
        return self.model_copy(update={"latest": json.dumps(vars(replace(offer)))})
