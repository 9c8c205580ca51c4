"""A node of Flower that sells privacy: its profile, its budgets, and its noised updates.

It decides and computes with the functions of the participant of QI-DPFL. No function here imports Flower.
"""

from dataclasses import dataclass, field

import numpy as np

from qidpfl_client.errors import UntrustedCoordinator
from qidpfl_client.journal.entries import SeenOffer
from qidpfl_client.noise import NoiseSource, SystemNoise
from qidpfl_client.owner import LIFETIME_RHO, Owner, lowered
from qidpfl_client.participant.bidding import DeclineCode, NoBid, decide
from qidpfl_client.participant.profile import check_presentable, make_profile
from qidpfl_client.participant.program import LocalProgram, ProgramData, ProgramRecords
from qidpfl_client.participant.slots import slot_s
from qidpfl_client.participant.verification import check_acceptable, check_offer
from qidpfl_shared.core.privacy.account import PrivacyAccount, ReleaseRefused
from qidpfl_shared.protocol.messages import RoundOffer
from qidpfl_shared.protocol.releases import histogram_release, release_of, round_release
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import Vector32, digest_of, encode

from .node_messages import NodeAnswer, NodeState


@dataclass(frozen=True, kw_only=True)
class PrivacySeller:
    """The owner of a node, with its limits. The limits hold for one run of Flower: see `NodeState`."""

    owner: Owner = field(default_factory=Owner)
    noise: NoiseSource = field(default_factory=SystemNoise)

    def profile(self, spec: TaskSpec, program: LocalProgram, records: ProgramRecords) -> NodeState:
        """The state with the profile of these records, which is charged.

        Raises `OwnerLimit` if the task asks for more than the owner allows.
        """
        check_acceptable(spec=spec, accept_unproven=self.owner.accept_unproven)
        check_presentable(spec=spec, owner=self.owner, account=self._new_account(spec))
        data = ProgramData(spec=spec, program=program, records=records)
        made = make_profile(spec=spec, owner=self.owner, learner=data.learner(0), noise=self.noise)
        state = NodeState(spec=spec.model_dump_json(), spec_digest=spec.digest, profile=made)
        if made.label_counts is None:
            return state
        release = histogram_release(made.histogram_rho)
        self._new_account(spec).charge(release)
        return state.with_release(release)

    def answer(
        self, state: NodeState, offer: RoundOffer, model: Vector32, program: LocalProgram, records: ProgramRecords
    ) -> tuple[NodeAnswer, NodeState]:
        """The answer to an offer, and the state to keep before the answer leaves.

        Raises `UntrustedCoordinator` if the offer contradicts the task or an earlier one.
        """
        spec = TaskSpec.read(state.spec)
        check_offer(offer=offer, spec=spec, latest=state.latest_offer)
        if digest_of(encode(model)) != offer.model_digest:
            raise UntrustedCoordinator(f"the model is not the one that round {offer.round_number} announces")
        state = state.with_offer(SeenOffer.of(offer))
        account = state.account(lifetime_rho=self._lifetime_rho(spec), accept_unproven=self.owner.accept_unproven)
        decision = decide(
            offer=offer,
            spec=spec,
            owner=self.owner,
            remaining_rho=account.remaining_rho,
            fixed_cost=self._fixed_cost(spec, records),
        )
        if isinstance(decision, NoBid):
            return NodeAnswer(declined=decision.code or DeclineCode.OWNER_LIMIT), state
        release = round_release(
            privacy=spec.privacy, round_number=offer.round_number, rho=decision.rho, size=records.size
        )
        try:
            account.charge(release)
        except ReleaseRefused:
            # This round was answered before: another update of it would be a second release.
            return NodeAnswer(declined=DeclineCode.OWNER_LIMIT), state
        update = (
            ProgramData(spec=spec, program=program, records=records)
            .learner(0)
            .release(
                privacy=spec.privacy,
                model=model,
                rho=decision.rho,
                noise=self.noise,
                name=release_of(offer.round_number),
            )
        )
        answer = NodeAnswer(rho=decision.rho, update=update.astype(np.float32))
        return answer, state.with_release(release)

    def _fixed_cost(self, spec: TaskSpec, records: ProgramRecords) -> float:
        length = slot_s(mechanism=spec.privacy.mechanism, size=records.size, dimension=spec.dimension, device="cpu")
        return self.owner.prices.of_round(
            size=records.size, training_s=length, transferred_bytes=2 * spec.layout.byte_length
        )

    def _lifetime_rho(self, spec: TaskSpec) -> float:
        own = LIFETIME_RHO if self.owner.lifetime_rho is None else self.owner.lifetime_rho
        return lowered(own, spec.privacy.lifetime_rho)

    def _new_account(self, spec: TaskSpec) -> PrivacyAccount:
        return PrivacyAccount(lifetime_rho=self._lifetime_rho(spec), accept_unproven=self.owner.accept_unproven)
