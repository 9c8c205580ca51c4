"""Rounds of an auction and of a menu: what is announced, refused and paid, and that the audit computes it again."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import update

from qidpfl_server.audit import audit
from qidpfl_server.errors import RequestRefused
from qidpfl_server.plugins.rules import load_rules
from qidpfl_server.service.enrolment import store_profile
from qidpfl_server.store.schema import invitations, payments
from qidpfl_shared.core.markets.design import Terms
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import Profile, TaskState
from support.use_cases import EVEN, ServedClient, ServedTask, UseCases

VALUES = (0.96, 1.04, 1.0, 1.02)
BOUNDS = {"privacy_value_min": 0.9, "privacy_value_max": 1.2}
WEIGHT = 30.0


def market(
    cases: UseCases,
    kind: str,
    values: tuple[float | None, ...] = VALUES,
    rounds: dict[str, Any] | None = None,
    **overrides: Any,
) -> Any:
    game = {"market": kind, "horizon": 2, "policy": "fixed", "fixed_reward_micro": 3_000_000} | overrides.pop(
        "game", {}
    )
    bounds = BOUNDS | overrides.pop("bounds", {})
    task = cases.task(game=game, bounds=bounds, rounds={"expected_clients": len(values)} | (rounds or {}), **overrides)
    clients = []
    for value in values:
        client = task.stranger()
        client.enrol()
        client.send_profile(privacy_value=value)
        clients.append(client)
    return task, clients


def play(task: ServedTask, clients: list[ServedClient], number: int = 1, part: float = 1.0) -> dict[str, float]:
    """Let the invited clients sell a part of what they may; the budgets."""
    sold = {}
    for client in clients:
        offer = client.offer()
        if offer.standing is Standing.INVITED:
            sold[client.client_id] = part * offer.rho_max
            client.declare(number, sold[client.client_id])
            client.upload(client.noise(part * offer.rho_max, number), number)
    task.settle()
    return sold


@pytest.mark.parametrize("defence", [{}, {"defence": None}, {"defence": {"escrow": 0.25}}], ids=["yes", "no", "escrow"])
def test_the_winners_of_an_auction_get_equal_parts_and_spend_the_reward(cases: UseCases, defence: Any) -> None:
    task, clients = market(cases, "auction", **defence)
    round_ = task.round()
    offers = [client.offer() for client in clients]
    assert [offer.standing.value for offer in offers] == ["invited", "priced_out", "invited", "invited"]
    price = round_.reward_micro / 1e6 / (WEIGHT * round_.total)
    assert price == pytest.approx(1.04)
    assert {offer.rho_max for offer in offers if offer.standing is Standing.INVITED} == {round_.total / 3}
    assert all(offer.base_rho is None for offer in offers)
    play(task, clients)
    result = task.result()
    assert result.paid_micro + (result.escrow_micro or 0) == result.reward_micro
    assert result.kept_micro == 0
    assert len(set(task.payments().values())) == 1
    play(task, clients, 2)
    assert task.now.state is TaskState.FINISHED
    assert cases.violations() == []


def test_a_winner_that_sells_less_is_paid_for_that_alone(cases: UseCases) -> None:
    task, clients = market(cases, "auction")
    play(task, clients, part=0.5)
    result = task.result()
    assert result.kept_micro == result.reward_micro - sum(task.payments().values())
    assert result.paid_micro == pytest.approx(result.reward_micro / 2, abs=3)
    assert cases.violations() == []


def test_an_auction_has_as_many_winners_as_it_says(cases: UseCases) -> None:
    task, clients = market(
        cases,
        "auction",
        (1.0, 0.95, 1.1, 1.05, 1.0),
        game={"winners": 3, "fixed_reward_micro": 10**7},
        rounds={"min_updates": 2},
    )
    standings = [client.offer().standing.value for client in clients]
    assert standings == ["invited", "invited", "priced_out", "priced_out", "invited"]
    # A multiple of the three winners.
    assert task.round().reward_micro == 9_999_999
    play(task, clients)
    assert set(task.payments().values()) == {3_333_333}
    assert cases.violations() == []


def test_a_winner_cannot_declare_more_than_its_part(cases: UseCases) -> None:
    _, clients = market(cases, "auction")
    with pytest.raises(RequestRefused) as caught:
        clients[0].declare(1, 1.01 * clients[0].offer().rho_max)
    assert caught.value.code is ErrorCode.OUT_OF_BOUNDS


def test_the_menu_pays_what_each_client_chose(cases: UseCases) -> None:
    task, clients = market(cases, "menu", (None,) * 4)
    offers = [client.offer() for client in clients]
    design, sold = task.now.spec.design, {}
    for client, offer, value in zip(clients, offers, VALUES, strict=True):
        assert offer.base_rho is not None
        terms = Terms(reward_micro=offer.reward_micro, total=offer.total, limit=offer.rho_max, base=offer.base_rho)
        assert design.refusal(terms, privacy_value=None) is None
        chosen = design.answer(terms, privacy_value=value, cap=1.0)
        assert chosen.payment > WEIGHT * value * chosen.rho
        sold[client.client_id] = design.payment(terms, chosen.rho)
        receipt = client.declare(1, chosen.rho)
        assert receipt.payment_micro == sold[client.client_id]
        assert client.declare(1, chosen.rho) == receipt
        client.upload(client.noise(chosen.rho))
    task.settle()
    assert task.payments() == sold
    result = task.result()
    assert 0 < result.kept_micro < result.reward_micro // 2
    # The second round pays nothing for too small a budget.
    play(task, clients, 2, part=0.3)
    assert set(task.payments(2).values()) == {0}
    assert task.now.state is TaskState.FINISHED
    assert cases.violations() == []


def test_the_largest_budgets_of_a_menu_do_not_exceed_its_reward(cases: UseCases) -> None:
    task, clients = market(cases, "menu", (None,) * 4, game={"prior": "uniform"})
    play(task, clients)
    assert 0 <= task.result().kept_micro <= 10
    assert cases.violations() == []


def test_only_a_menu_accepts_profiles_without_a_privacy_value(cases: UseCases) -> None:
    for kind in ("contest", "auction"):
        task = cases.task(game={"market": kind})
        client = task.stranger()
        client.enrol()
        with pytest.raises(RequestRefused) as caught:
            client.send_profile(privacy_value=None)
        assert caught.value.code is ErrorCode.PRIVACY_VALUE_REQUIRED
        assert str(caught.value) == f"privacy_value_required: market {kind} needs it"
    menu = cases.task(game={"market": "menu"}, bounds=BOUNDS)
    client = menu.client(labels=EVEN, limits={"privacy_value": 1.1})
    assert client.now.privacy_value == 1.1
    with pytest.raises(RequestRefused) as caught:
        menu.client(limits={"privacy_value": 1.3})
    assert caught.value.code is ErrorCode.OUT_OF_BOUNDS


@pytest.mark.parametrize("kind", ["auction", "menu"])
def test_the_audit_finds_another_payment_and_another_offer(cases: UseCases, kind: str) -> None:
    task, clients = market(cases, kind)
    play(task, clients)
    with changed(cases, payments, amount_micro=payments.c.amount_micro + 1):
        assert any("but its share is" in said for said in cases.violations())
    with changed(cases, invitations, expected_rho=invitations.c.expected_rho * 0.9):
        assert any("the invitation is not that of the plan" in said for said in cases.violations())
    assert cases.violations() == []


def test_a_schedule_shapes_the_rewards_of_a_custom_policy_also_for_an_audit_without_it(
    cases: UseCases, tmp_path: Path
) -> None:
    (tmp_path / "paying.py").write_text("def reward(question):\n    return 6.0\n")
    rules = load_rules([tmp_path / "paying.py"])
    game = {"policy": "own", "own_rules": "paying", "schedule": "given", "schedule_weights": [1.0, 3.0], "horizon": 2}
    task = cases.task(rules=rules, game=game, rounds={"expected_clients": 3})
    for _ in range(3):
        client = task.stranger()
        client.enrol()
        profile = Profile(label_counts=EVEN, size=110, privacy_value=1.0, histogram_rho=0.1)
        stored = partial(store_profile, client_id=client.client_id, profile=profile, now=cases.clock.now(), rules=rules)
        cases.write(stored)
    assert task.round().reward_micro == 3_000_000
    assert not [said for said in audit(cases.store).violations if "the plan says" in said]
    assert audit(cases.store, rules=rules).violations == []


@pytest.mark.parametrize("kind", ["auction", "menu"])
def test_the_audit_misses_the_limit_of_a_seller(cases: UseCases, kind: str) -> None:
    """Without it, a larger budget and its payment would pass."""
    task, clients = market(cases, kind)
    play(task, clients)
    with changed(cases, invitations, rho_limit=None):
        assert any("the invitation is not that of the plan" in said for said in cases.violations())


def test_no_winner_sells_more_than_its_part_not_even_by_rounding(cases: UseCases) -> None:
    """The parts add up to the reward. With large rewards the slack of other markets would be worth micro-units."""
    bounds = {"reward_max_micro": 10**15, "reward_total_micro": 10**15, "rho_max": 1e9}
    task, clients = market(cases, "auction", game={"fixed_reward_micro": 3 * 10**14}, bounds=bounds)
    winner = next(client for client in clients if client.offer().standing is Standing.INVITED)
    with pytest.raises(RequestRefused) as caught:
        winner.declare(1, winner.offer().rho_max * (1 + 0.9e-12))
    assert caught.value.code is ErrorCode.OUT_OF_BOUNDS
    play(task, clients)
    assert task.result().kept_micro == 0
    assert cases.violations() == []


def test_as_many_winners_as_updates_are_refused(cases: UseCases) -> None:
    with pytest.raises(ValidationError, match="winners must exceed min_updates"):
        market(cases, "auction", game={"winners": 3}, rounds={"min_updates": 3, "min_clients": 3})


@contextmanager
def changed(cases: UseCases, table: Any, **values: Any) -> Iterator[None]:
    """Change rows of one client without a trace in the code that writes them."""
    chosen = table.c.round_number == 1
    with cases.store.engine.connect() as connection:
        before = connection.execute(table.select().where(chosen)).mappings().all()
        connection.execute(update(table).where(chosen).values(**values))
        connection.commit()
    yield
    with cases.store.engine.connect() as connection:
        for row in before:
            own = (table.c.client_id == row["client_id"]) & (table.c.task_id == row["task_id"]) & chosen
            connection.execute(update(table).where(own).values(**row))
        connection.commit()
