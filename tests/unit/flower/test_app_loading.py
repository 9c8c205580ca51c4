"""Where a Flower app is found, and its configuration; the labels of its records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_client.errors import Misconfigured
from qidpfl_flower.app_loading import FlowerProject, config_of, loaded
from qidpfl_flower.records import asked_labels, records_of_files, records_of_labels
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.workloads.own_data.reading import OwnFiles
from qidpfl_shared.workloads.workload import WorkloadError

PROJECT = """
[tool.flwr.app.components]
clientapp = "found_by_its_project:made.app"
[tool.flwr.app.config]
rate = 0.5
[tool.flwr.app.config.local]
epochs = 2
"""


def test_a_project_names_its_client_and_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "found_by_its_project.py").write_text("class made:\n    app = 'the app'\n")
    project = FlowerProject.named(str(tmp_path))
    assert project.run_config == {"rate": 0.5, "local.epochs": 2}
    assert project.load() == "the app"


def test_a_reference_takes_the_configuration_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "other_client.py").write_text("app = 'another one'\n")
    project = FlowerProject.named("other_client:app", folder=tmp_path)
    assert (project.load(), project.run_config["rate"]) == ("another one", 0.5)


@pytest.mark.parametrize(
    ("app", "files", "said"),
    [
        ("nothing-here", {}, "neither a folder of a Flower app nor module:object"),
        (".", {}, "names no clientapp"),
        (".", {"pyproject.toml": "= broken"}, "is not a project file"),
        ("no_such_module:app", {}, "no_such_module:app in .* cannot be imported: ModuleNotFoundError"),
        ("fails_at_import:app", {"fails_at_import.py": "raise SystemExit(3)"}, "SystemExit: 3"),
        ("lacks_it:app", {"lacks_it.py": ""}, "AttributeError"),
        ("lacks_it:", {}, "must be module:object"),
    ],
)
def test_a_wrong_app_is_one_line(
    app: str, files: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured, match=said) as raised:
        FlowerProject.named(app).load()
    assert "\n" not in str(raised.value)


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="there is no folder"):
        FlowerProject.named("client:app", folder=tmp_path / "missing")


def test_values_are_those_of_flowers_notation() -> None:
    found = config_of(["partition-id=0 num-partitions=10", "rate=1e-2 shuffle=true", "path=C:/mine", "empty="])
    assert found == {
        **{"partition-id": 0, "num-partitions": 10, "rate": 0.01, "shuffle": True},
        **{"path": "C:/mine", "empty": ""},
    }
    assert isinstance(found["partition-id"], int) and config_of(["a=[1]"]) == {"a": "[1]"}
    with pytest.raises(Misconfigured, match="'lonely' must be NAME=VALUE"):
        config_of(["lonely"])


@pytest.mark.parametrize("labels", [[2, 0, 2, 1], np.array([2, 0, 2, 1], dtype=np.uint8), (2, 0, 2, 1)])
def test_labels_are_counted(labels: Any) -> None:
    records = records_of_labels(labels, wanted=4)
    assert (records.label_counts.tolist(), records.size) == ([1, 1, 2, 0], 4)
    assert records.fingerprint == records_of_labels([2, 0, 2, 1], wanted=4).fingerprint
    assert records.fingerprint != records_of_labels([0, 2, 2, 1], wanted=4).fingerprint


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([], "no labels|whole numbers"),
        (np.array([], dtype=int), "no records"),
        ([0.0, 1.0], "must be whole numbers"),
        (["cat"], "must be whole numbers"),
        ([[0], [1]], r"in one list, not int64 \(2, 1\)"),
        ([[0], [1, 2]], "no array|whole numbers"),
        ([0, 3], "from 0 to 3, those of the task from 0 to 2"),
        ([-1, 0], "from -1 to 0"),
    ],
)
def test_what_is_no_list_of_labels_is_refused(labels: Any, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        records_of_labels(labels, wanted=3)


OWN_DATA = {
    "data": {
        "columns": [{"name": "age", "low": 0.0, "high": 100.0}],
        "label": {"column": "outcome", "names": ["home", "ward", "garage"]},
    },
    "workload": {"dataset": "visits", "network": "linear", "labels": 3},
    "layout": {"tensors": [{"name": "weight", "shape": [3, 1]}, {"name": "bias", "shape": [3]}]},
}


def test_labels_come_from_the_files_that_the_app_reads(tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text("age,outcome\n50,home\n20,ward\n30,ward\n")
    spec = preset("own", OWN_DATA)
    records = records_of_files(spec, OwnFiles(path=table, columns={}, labels={}))
    assert (records.label_counts.tolist(), records.size) == ([1, 2, 0], 3)
    table.write_text("age,outcome\n51,home\n20,ward\n30,ward\n")
    assert records_of_files(spec, OwnFiles(path=table, columns={}, labels={})).fingerprint != records.fingerprint
    with pytest.raises(WorkloadError, match="name the labels with --labels"):
        records_of_files(preset("own"), OwnFiles(path=table, columns={}, labels={}))


def test_the_function_of_the_labels_may_take_the_context() -> None:
    assert asked_labels(lambda: [1], "context") == [1]
    assert asked_labels(lambda context: [context], "context") == ["context"]
    with pytest.raises(Misconfigured, match="labels failed: KeyError"):
        asked_labels(lambda: dict[str, int]()["x"], "context")


def test_labels_are_found_in_the_folder_of_the_app(tmp_path: Path) -> None:
    (tmp_path / "my_own_labels.py").write_text("def all_of_them():\n    return [0, 1]\n")
    assert loaded("my_own_labels:all_of_them", folder=tmp_path)() == [0, 1]
