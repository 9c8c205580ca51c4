"""A client refuses every contradiction of the coordinator."""

from pathlib import Path
from typing import Any

import pytest

from qidpfl_client.errors import OwnerLimit, UntrustedCoordinator
from qidpfl_client.journal.journal import Entry, SeenOffer
from qidpfl_client.participant.verification import (
    check_acceptable,
    check_claim,
    check_common_noise,
    check_device,
    check_offer,
    check_payment,
    check_spec,
    refusal_of_claim,
)
from qidpfl_shared.protocol.ledger import LedgerEntry, SpendState
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
        ({"attempt": 4}, "round 3 is beyond its 3 attempts"),
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


# What breaks each row of the table, by the fields of the row.
LIES: dict[str, list[dict[str, Any]]] = {
    "mechanism": [{"mechanism": "paper_literal"}],
    "clip_norm": [{"clip_norm": 0.5}],
    "dimension": [{"dimension": 651}],
    "noise": [{"noise": False}],
    "rho_max": [{"rho_max": 5.0}],
    "reward_micro": [{"reward_micro": 300_000_001}],
    "round_number": [{"round_number": 21, "model_version": 20}, {"round_number": 2, "model_version": 1}],
    "attempt": [{"attempt": 4}],
    "model_version": [{"model_version": 1}],
    "model_version, model_digest, reward_micro, total": [
        {"attempt": 2, "model_digest": "b" * 64},
        {"attempt": 2, "reward_micro": 2_000_000},
        {"attempt": 2, "total": 0.6},
    ],
}


def test_every_row_of_the_table_for_authors_of_clients_is_a_check() -> None:
    page = (Path(__file__).parents[4] / "docs" / "clients.md").read_text()
    table = page.split("### Field of the announcement, field of the spec")[1].split("\n\n")[1]
    rows = [line.split("|")[1].replace("`", "").strip() for line in table.splitlines()[2:]]
    assert rows == list(LIES)
    for changes in (one for lies in LIES.values() for one in lies):
        with pytest.raises(UntrustedCoordinator):
            check_offer(offer=offer(**changes), spec=SPEC, latest=LATEST)


@pytest.mark.parametrize(("announced", "reward"), [(LATEST, 1_000_000), (None, 300_000_000)])
def test_a_payment_above_the_announced_reward_is_refused(announced: SeenOffer | None, reward: int) -> None:
    check_payment(round_number=3, payment_micro=reward, announced=announced, spec=SPEC)
    with pytest.raises(UntrustedCoordinator, match=r"round 3 is paid .*, more than its reward") as caught:
        check_payment(round_number=3, payment_micro=reward + 1, announced=announced, spec=SPEC)
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


def claim(**changes: Any) -> LedgerEntry:
    fields = {"release": "round/1", "mechanism": "gradient_once", "state": "spent", "rho": 0.1, "proven_rho": 0.1}
    return LedgerEntry.model_validate(fields | {"digest": "a" * 64} | changes)


def known(state: SpendState, *, digest: str | None = None) -> Entry:
    return Entry(task_id="t", release="round/1", mechanism="m", rho=0.1, proven_rho=0.1, state=state, digest=digest)


@pytest.mark.parametrize("state", [SpendState.SPENT, SpendState.SPENT_UNPAID])
def test_a_release_that_the_journal_has_sent_may_be_in_the_coordinators_ledger(state: SpendState) -> None:
    own = known(state, digest="a" * 64)
    assert refusal_of_claim(claim(), own) is None
    assert "other bytes" in str(refusal_of_claim(claim(digest="b" * 64), own))


@pytest.mark.parametrize(("rho", "refused"), [(0.01, True), (0.1, False), (0.1 + 1e-9, True), (50.0, True)])
def test_a_reserved_release_is_believed_at_its_own_budget_only(rho: float, refused: bool) -> None:
    assert (refusal_of_claim(claim(rho=rho), known(SpendState.RESERVED)) is not None) == refused


@pytest.mark.parametrize("own", [None, known(SpendState.FREED)], ids=["never made", "cancelled"])
def test_an_invented_release_is_refused(own: Entry | None) -> None:
    assert refusal_of_claim(claim(), own) is not None


@pytest.mark.parametrize("lie", [{"release": "round/x"}, {"release": "round/1/2"}, {"digest": None}])
@pytest.mark.parametrize("own", [None, known(SpendState.RESERVED), known(SpendState.SPENT)])
def test_a_release_that_no_client_makes_is_refused(lie: dict[str, Any], own: Entry | None) -> None:
    assert refusal_of_claim(claim(**lie), own) == "which no client releases"


def test_a_device_without_proofs_needs_the_consent_of_the_owner() -> None:
    for device in ("cpu", "cuda"):
        check_device(device_type=device, accept_unproven=False)
    check_device(device_type="mps", accept_unproven=True)
    with pytest.raises(OwnerLimit, match="mps are heuristic"):
        check_device(device_type="mps", accept_unproven=False)


def test_noise_of_the_owners_program_needs_the_consent_of_the_owner() -> None:
    check_claim(claimed=False, accept_unproven=False)
    check_claim(claimed=True, accept_unproven=True)
    with pytest.raises(OwnerLimit, match="only claimed"):
        check_claim(claimed=True, accept_unproven=False)


def test_common_noise_is_refused_for_data_that_may_be_real() -> None:
    check_common_noise(spec=SPEC, accept_unproven=True)
    with pytest.raises(OwnerLimit, match="protects nothing"):
        check_common_noise(spec=SPEC, accept_unproven=False)
    custom = preset("digits", {"workload": {"dataset": "wards:Wards"}})
    no_shards = preset("digits", {"workload": {"partition": None}})
    for spec in (custom, no_shards, preset("own")):
        with pytest.raises(OwnerLimit, match="common noise is for the built-in data sets"):
            check_common_noise(spec=spec, accept_unproven=True)
