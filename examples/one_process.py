"""One whole task in one process, on scikit-learn's digits: a simple version of the networked system.

Ten clients, three of them with only two labels, sell their privacy to one coordinator for twenty rounds.
`qidpfl_shared.core` computes everything; there is no network, no file and no torch. This is a simulation: its noise
comes from numpy's generator and protects no data.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from qidpfl_shared.core.aggregation import ServerState, server_step, weighted_mean
from qidpfl_shared.core.equilibrium import best_response
from qidpfl_shared.core.money import MICRO, split_reward
from qidpfl_shared.core.noise_audit import NoiseAudit, NoiseVerdict, alpha_per_upload
from qidpfl_shared.core.planning import PlanStatus, Standing, plan_round
from qidpfl_shared.core.privacy.account import PrivacyAccount, Release
from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.core.privacy.views import system_statement
from qidpfl_shared.core.reward import aggregation_weights
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.core.selection import select
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import decode, encode, squared_norm

Array = npt.NDArray[np.float64]
LABELS, TRAINING = 10, 1437


@dataclass
class Client:
    """A data owner: its records, its privacy value, its releases and its earnings."""

    features: Array
    labels: npt.NDArray[np.int64]
    privacy_value: float
    account: PrivacyAccount
    earned_micro: int = 0

    @property
    def size(self) -> int:
        return len(self.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one whole QI-DPFL task on the digits in this process.")
    parser.add_argument("--seed", type=int, help="repeat a run (default: a new seed every time)")
    rng = np.random.default_rng(parser.parse_args().seed)

    spec = preset("digits")
    clients, test = make_clients(spec, rng)
    participants = select_clients(spec, clients, rng)
    accuracy = run_rounds(spec, participants, test, rng)
    summarise(spec, clients, participants, accuracy)


def make_clients(spec: TaskSpec, rng: np.random.Generator) -> tuple[list[Client], tuple[Array, npt.NDArray[np.int64]]]:
    """Divide the training digits into near-IID shards. Ordinals that the preset names get only two labels."""
    data = load_digits()
    order = rng.permutation(len(data.target))
    features, labels = data.data[order] / 16, data.target[order]
    partition = spec.workload.partition
    assert partition is not None and partition.concentration is not None
    free = list(range(TRAINING))
    clients = []
    for ordinal in range(partition.clients):
        wanted = rng.dirichlet(np.full(LABELS, partition.concentration))
        if ordinal in partition.two_class_ordinals:
            wanted = np.zeros(LABELS)
            wanted[rng.choice(LABELS, 2, replace=False)] = 0.5
        size = int(rng.integers(105, 126))
        weights = wanted[labels[free]] + 1e-9
        chosen = rng.choice(free, size, replace=False, p=weights / weights.sum())
        free = sorted(set(free) - set(chosen.tolist()))
        account = PrivacyAccount(lifetime_rho=spec.privacy.lifetime_rho or np.inf)
        clients.append(Client(features[chosen], labels[chosen], float(rng.uniform(0.95, 1.05)), account))
    return clients, (features[TRAINING:], labels[TRAINING:])


def select_clients(spec: TaskSpec, clients: list[Client], rng: np.random.Generator) -> list[Client]:
    """Select clients by their noised label histograms."""
    rho = spec.privacy.histogram_rho or 0.1
    histograms = []
    for client in clients:
        client.account = client.account.charge(
            Release(name="histogram", mechanism="gaussian histogram", rho=rho, proven_rho=rho)
        )
        counts = np.bincount(client.labels, minlength=LABELS)
        histograms.append(private_histogram(counts=counts, rho=rho, standard_noise=rng.standard_normal(LABELS)))
    selection = select(
        rule=spec.selection_rule(),
        histograms=histograms,
        reference=spec.label_reference(histograms),
        min_clients=spec.rounds.min_clients,
        shortfall=spec.selection.shortfall,
    )
    print(f"Selection: label distance to the reference, at most {spec.selection.distance_threshold}\n")
    print("  client  records  privacy value  distance")
    for ordinal, client in enumerate(clients):
        verdict = "selected" if selection.selected[ordinal] else "refused"
        distance = selection.label_distances[ordinal]
        print(f"  {ordinal:6d}  {client.size:7d}  {client.privacy_value:13.3f}  {distance:8.2f}  {verdict}")
    return [client for client, kept in zip(clients, selection.selected, strict=True) if kept]


def run_rounds(
    spec: TaskSpec, participants: list[Client], test: tuple[Array, npt.NDArray[np.int64]], rng: np.random.Generator
) -> float:
    """Run all rounds: plan, declare budgets, train, add noise, audit, aggregate, pay."""
    state = ServerState.start(np.zeros(spec.dimension, dtype=np.float32))
    left = spec.bounds.reward_total_micro
    accuracy = 0.0
    print("\n  round   reward  invited    budgets (rho)       paid  flagged  accuracy")
    for round_number in range(1, spec.game.horizon + 1):
        plan = plan_round(
            rules=spec.round_rules(),
            round_number=round_number,
            participants=[
                Participant(
                    privacy_value=client.privacy_value,
                    size=client.size,
                    remaining_rho=client.account.remaining_rho,
                )
                for client in participants
            ],
            reward_left_micro=left,
        )
        if plan.status is not PlanStatus.PLANNED:
            print(f"  the task ends: {plan.status}")
            break
        invited = [c for c, standing in zip(participants, plan.standings, strict=True) if standing is Standing.INVITED]
        budgets, uploads, flagged = answer(spec, round_number, plan.reward_micro, plan.total, invited, state, rng)
        state = aggregate(spec, state, invited, budgets, uploads)
        split = split_reward(reward_micro=plan.reward_micro, declared=budgets, delivered=[True] * len(budgets))
        for client, payment in zip(invited, split.payments, strict=True):
            client.earned_micro += payment
        paid = sum(split.payments)
        left -= paid
        accuracy = evaluate(state, *test)
        print(
            f"  {round_number:5d}  {plan.reward_micro / MICRO:7.2f}  {len(invited):7d}"
            f"  {min(budgets):.4f} - {max(budgets):.4f}  {paid / MICRO:7.2f}  {flagged:7d}  {accuracy:8.3f}"
        )
    return accuracy


def answer(
    spec: TaskSpec,
    round_number: int,
    reward_micro: int,
    total: float,
    invited: list[Client],
    state: ServerState,
    rng: np.random.Generator,
) -> tuple[list[float], list[bytes], int]:
    """Clients choose and charge budgets, train and add noise. The last value counts the uploads that are flagged."""
    mechanism = spec.privacy.mechanism.build()
    alpha = alpha_per_upload(alpha=spec.privacy.audit_alpha, clients=len(invited), rounds=spec.game.horizon)
    budgets, uploads, flagged = [], [], 0
    for client in invited:
        rho = best_response(
            reward=reward_micro / MICRO,
            total=total,
            privacy_value=client.privacy_value,
            privacy_weight=spec.game.privacy_weight,
            cap=min(spec.bounds.rho_max, client.account.remaining_rho),
        )
        proven = mechanism.proven_rho(rho=rho, size=client.size)
        client.account = client.account.charge(
            Release(name=f"round/{round_number}", mechanism=mechanism.name, rho=rho, proven_rho=proven)
        )
        gradient = clipped_mean_gradient(state.parameters, client, clip_norm=1.0)
        noise = mechanism.noise_std(rho=rho, size=client.size) * rng.standard_normal(spec.dimension)
        upload = encode(gradient + noise)
        audit = NoiseAudit.of_upload(
            mechanism=mechanism, rho=rho, size=client.size, dimension=spec.dimension, alpha=alpha
        )
        energy = squared_norm(decode(upload, dimension=spec.dimension))
        flagged += audit.verdict(squared_norm=energy) in (NoiseVerdict.TOO_LITTLE_NOISE, NoiseVerdict.TOO_MUCH_NOISE)
        budgets.append(rho)
        uploads.append(upload)
    return budgets, uploads, flagged


def aggregate(
    spec: TaskSpec, state: ServerState, invited: list[Client], budgets: list[float], uploads: list[bytes]
) -> ServerState:
    """Apply the weighted mean of the uploads to the model."""
    mechanism = spec.privacy.mechanism.build()
    weights = aggregation_weights(
        weighting=spec.aggregation.weighting,
        budgets=budgets,
        sizes=[client.size for client in invited],
        noise_scales=[mechanism.noise_scale(size=client.size) for client in invited],
    )
    vectors = (decode(upload, dimension=spec.dimension) for upload in uploads)
    mean = weighted_mean(updates=zip(weights.tolist(), vectors, strict=True), dimension=spec.dimension)
    return server_step(
        state=state,
        mean_update=mean,
        learning_rate=spec.aggregation.learning_rate,
        momentum=spec.aggregation.momentum,
    )


def clipped_mean_gradient(parameters: npt.NDArray[np.float32], client: Client, *, clip_norm: float) -> Array:
    """The mean of the clipped per-record gradients of softmax regression.

    The gradient of a record is the outer product of its error and its features, so its norm is the product of theirs.
    """
    inputs = with_bias(client.features)
    errors = softmax(inputs @ matrix(parameters).T)
    errors[np.arange(client.size), client.labels] -= 1
    norms = np.linalg.norm(errors, axis=1) * np.linalg.norm(inputs, axis=1)
    errors *= np.minimum(1, clip_norm / norms)[:, None]
    gradient = errors.T @ inputs / client.size
    return np.concatenate([gradient[:, :-1].ravel(), gradient[:, -1]])


def matrix(parameters: npt.NDArray[np.float32]) -> Array:
    """The matrix of weights and bias from the flat layout (weight, bias)."""
    weights = parameters[:-LABELS].reshape(LABELS, -1)
    return np.concatenate([weights, parameters[-LABELS:, None]], axis=1).astype(np.float64)


def with_bias(features: Array) -> Array:
    return np.hstack([features, np.ones((len(features), 1))])


def softmax(scores: Array) -> Array:
    odds: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    return odds


def evaluate(state: ServerState, features: Array, labels: npt.NDArray[np.int64]) -> float:
    """The accuracy on the held-out digits."""
    predicted = np.argmax(with_bias(features) @ matrix(state.parameters).T, axis=1)
    return float(np.mean(predicted == labels))


def summarise(spec: TaskSpec, clients: list[Client], participants: list[Client], accuracy: float) -> None:
    """Print the ledgers and their totals."""
    delta = spec.privacy.delta
    print(f"\n  client   earned  spent rho  epsilon at delta {delta:g}")
    for ordinal, client in enumerate(clients):
        epsilon = client.account.epsilon(delta=delta)
        earned = client.earned_micro / MICRO
        print(f"  {ordinal:6d}  {earned:7.2f}  {client.account.spent_rho:9.3f}  {epsilon:7.2f}")
    paid = sum(client.earned_micro for client in clients)
    print(f"\nAccuracy {accuracy:.3f} on held-out digits; {paid / MICRO:.6f} paid to {len(participants)} clients.")
    print(f"Privacy: {system_statement(accounts=[c.account for c in clients], delta=delta)}.")
    print("With about 110 records per client this is a demonstration: good protection needs more records.")


if __name__ == "__main__":
    main()
