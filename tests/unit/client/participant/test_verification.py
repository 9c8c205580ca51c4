"""A client refuses every contradiction of the coordinator."""

from typing import Any

import pytest

from qidpfl_client.errors import OwnerLimit, UntrustedCoordinator
from qidpfl_client.journal.journal import SeenOffer
from qidpfl_client.participant.verification import check_acceptable, check_offer, check_spec
from qidpfl_shared.protocol.messages import RoundOffer
from qidpfl_shared.protocol.presets import preset

SPEC = preset("digits")
OFFER: dict[str, Any] = {
    "round_number": 3,
    "attempt": 1,
    "reward_micro": 1_000_000,
    "total": 0.5,
    "standing": "invited",
    "model_version": 2,
    "model_digest": "a" * 64,
    "mechanism": "gradient_once",
    "clip_norm": 1.0,
    "dimension": 650,
    "rho_max": 0.5,
    "noise": True,
    "declare_by": "2026-01-01T00:00:00Z",
    "deliver_by": "2026-01-01T00:01:00Z",
    "declare_in_s": 1.0,
    "deliver_in_s": 61.0,
}


def offer(**changes: Any) -> RoundOffer:
    return RoundOffer.model_validate(OFFER | changes)


LATEST = SeenOffer.of(offer())


def test_an_offer_that_agrees_with_the_task_is_accepted() -> None:
    check_offer(offer=offer(), spec=SPEC, latest=None)
    check_offer(offer=offer(attempt=2, standing="set_aside", declare_in_s=9.0), spec=SPEC, latest=LATEST)
    check_offer(offer=offer(round_number=5, model_version=4, model_digest="b" * 64), spec=SPEC, latest=LATEST)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mechanism": "paper_literal"}, "mechanism paper_literal"),
        ({"clip_norm": 0.5}, "clip norm 0.5"),
        ({"clip_norm": None}, "clip norm None"),
        ({"dimension": 651}, "dimension 651"),
        ({"rho_max": 5.0}, "largest budget 5.0"),
        ({"noise": False}, "noise False"),
        ({"model_version": 1}, "model version 1"),
        ({"reward_micro": 300_000_001}, "more reward than the task may pay"),
        ({"round_number": 21, "model_version": 20}, "beyond the task's 20 rounds"),
        ({"round_number": 2, "model_version": 1}, "round 2 is announced again after round 3"),
        ({"model_digest": "b" * 64}, "another model or reward"),
        ({"reward_micro": 2_000_000, "attempt": 2}, "another model or reward"),
        ({"total": 0.6}, "another model or reward"),
    ],
)
def test_an_offer_that_contradicts_the_task_or_an_earlier_one_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UntrustedCoordinator, match=said) as caught:
        check_offer(offer=offer(**changes), spec=SPEC, latest=LATEST)
    assert "\n" not in str(caught.value)


def test_a_spec_with_another_digest_is_refused() -> None:
    check_spec(spec=SPEC, digest=SPEC.digest)
    with pytest.raises(UntrustedCoordinator):
        check_spec(spec=preset("digits", {"bounds": {"rho_max": 5.0}}), digest=SPEC.digest)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"game": {"policy": "none"}, "privacy": {"noise": False}}, "uses no noise"),
        (
            {
                "privacy": {
                    "mechanism": {"name": "paper_literal", "clip_norm": 1.0, "learning_rate": 0.1, "batch_size": 16}
                },
                "aggregation": {"learning_rate": 1.0, "momentum": 0.0},
            },
            "heuristic",
        ),
    ],
)
def test_a_task_without_a_guarantee_needs_consent(overrides: dict[str, Any], said: str) -> None:
    spec = preset("digits", overrides)
    with pytest.raises(OwnerLimit, match=said):
        check_acceptable(spec=spec, accept_unproven=False)
    check_acceptable(spec=spec, accept_unproven=True)
    check_acceptable(spec=SPEC, accept_unproven=False)
