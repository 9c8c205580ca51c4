"""Presets for another number of clients or rounds, and the neutral preset for workloads of one's own."""

import numpy as np
import pytest
from pydantic import ValidationError

from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.core.selection import label_distances
from qidpfl_shared.protocol.presets import OWN, PRESETS, preset
from qidpfl_shared.workloads.datasets.digits import read_digits
from qidpfl_shared.workloads.partitions import all_shards


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("clients", [2, 3, 7, 100, 1500])
def test_every_preset_has_a_place_and_a_shard_for_every_client(name: str, clients: int) -> None:
    spec = preset(name, clients=clients)
    partition = spec.workload.partition
    assert partition is not None and partition.clients == clients
    assert spec.rounds.expected_clients == clients <= spec.bounds.clients_max
    assert spec.rounds.min_updates <= spec.rounds.min_clients <= clients
    assert all(place < clients for place in partition.two_class_ordinals)


def test_the_clients_with_two_labels_keep_their_share() -> None:
    partition = preset("digits", clients=25).workload.partition
    assert partition is not None
    assert partition.two_class_ordinals == (2, 5, 8, 12, 15, 18, 22)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("clients", [2, 3, 4, 5, 10])
def test_enough_clients_are_left_when_the_selection_refuses_all_with_two_labels(name: str, clients: int) -> None:
    spec = preset(name, clients=clients)
    assert spec.workload.partition is not None
    assert clients - len(spec.workload.partition.two_class_ordinals) >= spec.rounds.min_clients


@pytest.mark.parametrize("seed", range(5))
def test_every_shard_of_a_small_testbed_passes_the_selection(seed: int) -> None:
    spec, labels = preset("digits", clients=3), read_digits(training=True).labels
    assert spec.workload.partition is not None and spec.privacy.histogram_rho is not None
    shards = all_shards(labels=labels, partition=spec.workload.partition)
    noise = np.random.default_rng(seed)
    noisy = [
        private_histogram(
            counts=np.bincount(labels[shard], minlength=10),
            rho=spec.privacy.histogram_rho,
            standard_noise=noise.standard_normal(10),
        )
        for shard in shards
    ]
    found = label_distances(histograms=noisy, reference=[0.1] * 10)
    assert len(shards) == 3 and (found <= spec.selection.distance_threshold).all()


def test_the_threshold_grows_only_with_the_noise_of_smaller_shards() -> None:
    thresholds = [preset("digits", clients=clients).selection.distance_threshold for clients in (3, 10, 20, 40, 200)]
    assert thresholds[:2] == [0.75, 0.75] and thresholds == sorted(thresholds) and thresholds[-1] == 2.0
    assert preset("mnist", clients=40).selection.distance_threshold < 0.85


def test_the_size_of_the_preset_changes_nothing() -> None:
    assert preset("digits", clients=10, rounds=20) == preset("digits")


def test_more_rounds_have_more_to_pay() -> None:
    spec = preset("digits", rounds=40)
    assert spec.game.horizon == 40
    assert spec.bounds.reward_total_micro == 40 * spec.bounds.reward_max_micro


def test_overrides_win_over_sizes() -> None:
    spec = preset("digits", {"rounds": {"expected_clients": 4}}, clients=8, rounds=3)
    assert (spec.rounds.expected_clients, spec.game.horizon) == (4, 3)
    with pytest.raises(ValidationError, match=r"exceeds partition\.clients"):
        preset("digits", {"rounds": {"expected_clients": 9}}, clients=8)


def test_the_neutral_preset_has_no_partition_and_fits_the_default_limits_of_a_client() -> None:
    spec = preset(OWN, clients=3)
    assert spec.workload.partition is None and spec.rounds.expected_clients == 3
    assert spec.privacy.lifetime_rho == 0.2 and spec.privacy.histogram_rho == 0.02
    assert spec.game.horizon * spec.bounds.rho_max + 0.02 == pytest.approx(0.2)
