"""The settings of the experiments: the built-in file, and errors in a user's file."""

from pathlib import Path

import pytest

from qidpfl_experiments.run.grid import GridBuilder
from qidpfl_experiments.settings import SETTINGS, SettingsError, read_settings, setup
from qidpfl_shared.protocol.task_spec import PartitionKind

ALL = read_settings()
SCALES = [(dataset, scale) for dataset, values in ALL.datasets.items() for scale in values.scales]


@pytest.mark.parametrize(("dataset", "scale"), SCALES)
@pytest.mark.parametrize("partition", ALL.partitions)
def test_every_scale_of_every_data_set_makes_a_task_on_every_partition(
    dataset: str, scale: str, partition: str
) -> None:
    found = setup(ALL, dataset=dataset, scale=scale, variant="recommended", partitions=[partition])
    spec = GridBuilder(setup=found).calibration_cell(partition=partition, reward=found.rewards[0]).spec
    assert spec.workload.partition is not None
    assert spec.workload.partition.clients == spec.rounds.expected_clients == found.clients


@pytest.mark.parametrize("variant", ALL.variants)
def test_every_variant_makes_a_task_on_mnist(variant: str) -> None:
    found = setup(ALL, dataset="mnist", scale=None, variant=variant, partitions=["iid"])
    spec = GridBuilder(setup=found).calibration_cell(partition="iid", reward=1.0).spec
    mechanism = found.task.get("privacy", {}).get("mechanism", {"name": "gradient_once"})["name"]
    assert spec.privacy.mechanism.name == mechanism


# The paper's Table I: training records, rounds T and discount π.
@pytest.mark.parametrize(
    ("dataset", "rounds", "discount"), [("mnist", 30, 0.9429), ("cifar10", 80, 0.9664), ("emnist", 30, 0.901)]
)
def test_the_full_scale_is_that_of_the_paper(dataset: str, rounds: int, discount: float) -> None:
    found = setup(ALL, dataset=dataset, scale="full", variant="recommended", partitions=["dirichlet"])
    spec = GridBuilder(setup=found).calibration_cell(partition="dirichlet", reward=1.0).spec
    assert (spec.game.horizon, spec.game.discount) == (rounds, discount)
    assert spec.workload.training_records is None and found.is_full


def test_every_third_client_of_a_quality_mix_holds_two_labels() -> None:
    partition = ALL.partitions["quality-mix"].partition(clients=10, seed=3)
    assert (partition["kind"], partition["two_class_ordinals"]) == (PartitionKind.QUALITY_MIX, [2, 5, 8])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "svhn"}, "there is no data set 'svhn'; there are digits, mnist"),
        ({"scale": "tiny"}, "there is no scale of digits 'tiny'; there are full, smoke"),
        ({"variant": "fast"}, "there is no variant 'fast'"),
        ({"partitions": ["iid", "odd"]}, "there is no partition 'odd'"),
    ],
)
def test_the_error_for_an_unknown_name_lists_the_known_names(changes: dict[str, object], message: str) -> None:
    asked: dict[str, object] = {"dataset": "digits", "scale": None, "variant": "recommended", "partitions": ["iid"]}
    with pytest.raises(SettingsError, match=message):
        setup(ALL, **(asked | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[common.rounds]", "[common.rounds", "is not TOML"),
        ("clients = 20", "clients = 1", "datasets.mnist.clients: Input should be greater than or equal to 3"),
        ("target_gap", "target_gab", "datasets.digits.target_gap: Field required"),
    ],
)
def test_an_invalid_settings_file_gets_a_message_of_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    wrong = tmp_path / "settings.toml"
    wrong.write_text(SETTINGS.read_text().replace(old, new))
    with pytest.raises(SettingsError, match=message):
        read_settings(wrong)


def test_an_unknown_preset_is_rejected(tmp_path: Path) -> None:
    wrong = tmp_path / "settings.toml"
    wrong.write_text(SETTINGS.read_text().replace('preset = "digits"', 'preset = "numbers"'))
    with pytest.raises(SettingsError, match="unknown preset 'numbers'"):
        setup(read_settings(wrong), dataset="digits", scale=None, variant="recommended", partitions=["iid"])
