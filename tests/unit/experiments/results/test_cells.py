"""Cell files and the results folder: only finished cells with the same settings are reused."""

import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from qidpfl_experiments.methods import QI_DPFL
from qidpfl_experiments.results.cells import Cell, CellFiles, CellResult
from qidpfl_experiments.results.folder import (
    Config,
    NotOurFolder,
    ResultsFolder,
    gathered,
    opened,
    read_config,
    versions,
)
from qidpfl_experiments.results.tables import ClientRow, DamagedResults, Tables
from qidpfl_experiments.run.execute import failed
from qidpfl_experiments.run.grid import GridBuilder
from qidpfl_experiments.settings import Setup, read_settings, setup
from qidpfl_shared.protocol.presets import merged

SETUP = setup(read_settings(), dataset="digits", scale="smoke", variant="recommended", partitions=["iid"])


def a_cell(seed: int = 0) -> Cell:
    return GridBuilder(setup=SETUP).cell(QI_DPFL, partition="iid", seed=seed, rewards=None, leader=None)


def a_result(cell: Cell) -> CellResult:
    result = failed(cell, "")
    client = ClientRow(
        **{name: getattr(cell.key, name) for name in ("dataset", "partition", "method", "seed")},
        ordinal=0,
        size=100,
        privacy_value=1.01,
        label_distance=0.1,
        selected=True,
        updates=3,
        mean_rho=1 / 3,
        spent_rho=None,
        epsilon=None,
        earned=0.1,
    )
    return replace(result, cell=replace(result.cell, state="finished", accuracy=0.1 + 0.2), clients=(client,))


def test_a_finished_cell_is_read_as_it_was_written(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), a_cell()
    files.write(cell, a_result(cell))
    assert files.read(cell) == a_result(cell)
    assert files.all() == [a_result(cell)]


def test_a_failed_cell_is_run_again_but_listed(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), a_cell()
    files.write(cell, failed(cell, "a  fleet\nwas killed"))
    assert files.read(cell) is None
    assert [result.cell.reason for result in files.all()] == ["a fleet was killed"]


def test_the_result_of_other_settings_is_not_used(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), a_cell()
    files.write(cell, a_result(cell))
    assert files.read(replace(cell, privacy_value="1:2")) is None


def test_an_unfinished_file_is_not_a_result(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), a_cell()
    files.write(cell, a_result(cell))
    (whole,) = (tmp_path / "cells").iterdir()
    whole.rename(whole.with_suffix(".tmp"))
    assert files.read(cell) is None
    assert files.all() == []


@pytest.mark.parametrize("text", ["", "{}", "null", '{"fingerprint": 1', "\xff\xfe"])
def test_a_damaged_file_is_reported_in_one_line_with_a_remedy(tmp_path: Path, text: str) -> None:
    files, cell = CellFiles(tmp_path), a_cell()
    files.write(cell, a_result(cell))
    (whole,) = (tmp_path / "cells").iterdir()
    whole.write_text(text, encoding="latin-1")
    with pytest.raises(
        DamagedResults, match=r"seed-0\.json is damaged: .+; remove it and run the same command again$"
    ) as told:
        files.read(cell)
    assert "\n" not in str(told.value)


def config_of(setup: Setup = SETUP, *, reproducible: bool = False, **own_rules: str) -> Config:
    specs = GridBuilder(setup=setup).whole_specs()
    return Config(setup=setup, reproducible=reproducible, specs=specs, own_rules=own_rules, versions=[versions()])


def folder_of(path: Path, setup: Setup = SETUP, *, reproducible: bool = False, **own_rules: str) -> ResultsFolder:
    path.mkdir(exist_ok=True)
    return ResultsFolder(path, config_of(setup, reproducible=reproducible, **own_rules))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 7}, "holds results with other settings: clients differs; choose another --out"),
        ({"scale": "full"}, "holds results with another --scale: smoke; choose another --out"),
        ({"task": merged(SETUP.task, {"game": {"horizon": 4}})}, "other settings: task.game.horizon differs"),
        (
            {"partitions": {"iid": SETUP.partitions["iid"].model_copy(update={"concentration": 3.0})}},
            "other settings: partitions.iid.concentration differs",
        ),
    ],
)
def test_a_folder_belongs_to_one_setup(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder_of(tmp_path)
    with pytest.raises(NotOurFolder, match=message):
        folder_of(tmp_path, SETUP.model_copy(update=changes))


def test_descriptions_of_a_setup_may_change(tmp_path: Path) -> None:
    folder_of(tmp_path)
    partitions = {"iid": SETUP.partitions["iid"].model_copy(update={"about": "another text"})}
    folder_of(tmp_path, SETUP.model_copy(update={"about": "another text", "partitions": partitions}))


def test_noise_from_a_seed_and_system_noise_are_not_mixed(tmp_path: Path) -> None:
    folder_of(tmp_path)
    with pytest.raises(NotOurFolder, match="with another --reproducible: False; choose another --out"):
        folder_of(tmp_path, reproducible=True)


def test_partitions_are_added_to_a_folder(tmp_path: Path) -> None:
    folder_of(tmp_path)
    more = setup(read_settings(), dataset="digits", scale="smoke", variant="recommended", partitions=["dirichlet"])
    folder_of(tmp_path, more)
    config = read_config(tmp_path)
    assert [*config.setup.partitions] == [*config.specs] == ["iid", "dirichlet"]
    assert {spec["workload"]["partition"]["kind"] for spec in config.specs.values()} == {"iid", "dirichlet_class"}


def test_changed_custom_rules_remove_only_their_own_results(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, mine="before")
    ours, own = a_cell(), replace(a_cell(), key=replace(a_cell().key, method="mine"))
    for cell in (ours, own):
        folder.cells.write(cell, a_result(cell))
    folder_of(tmp_path, mine="before")
    assert [result.cell.method for result in folder.cells.all()] == ["mine", "qi-dpfl"]
    folder_of(tmp_path, mine="after")
    assert [result.cell.method for result in folder.cells.all()] == ["qi-dpfl"]
    assert read_config(tmp_path).own_rules == {"mine": "after"}


def test_the_configuration_records_settings_versions_and_runs(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.note_run("qidpfl-experiments run", audit="5 checks, 0 violated", wall_s=1.234)
    config = read_config(tmp_path)
    assert config.setup.task["game"]["horizon"] == config.specs["iid"]["game"]["horizon"] == 3
    assert config.specs["iid"]["aggregation"]["learning_rate"] == 3.0
    assert {"python", "torch", "numpy", "qidpfl-server"} <= config.versions[0].keys()
    assert [(run.command, run.wall_s) for run in config.runs] == [("qidpfl-experiments run", 1.2)]


def test_the_versions_of_other_machines_are_noted_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    other = versions() | {"torch": "9.9"}
    for _ in range(2):
        folder.note_run("qidpfl-experiments run --on ray", audit="", wall_s=1.0, versions=[other])
    # A later run on this machine has its entry already.
    folder_of(tmp_path)
    assert [one["torch"] for one in read_config(tmp_path).versions] == [version("torch"), "9.9"]


def test_other_versions_are_added_to_the_configuration(tmp_path: Path) -> None:
    folder_of(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace(f'"numpy": "{version("numpy")}"', '"numpy": "1.0"'))
    folder_of(tmp_path)
    folder_of(tmp_path)
    assert [versions["numpy"] for versions in read_config(tmp_path).versions] == ["1.0", version("numpy")]


@pytest.mark.parametrize("text", ["", "{}", "[]", "no JSON"])
def test_a_damaged_configuration_is_reported_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DamagedResults, match=r"config\.json is damaged: ") as told:
        folder_of(tmp_path)
    assert "\n" not in str(told.value)


def test_a_folder_with_other_files_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(NotOurFolder, match="is not empty and holds no results"),
        opened(tmp_path, config_of()),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "out", config_of()),
        pytest.raises(NotOurFolder, match="another run uses"),
        opened(tmp_path / "out", config_of()),
    ):
        pass
    with opened(tmp_path / "out", config_of()) as again:
        assert not again.is_new


def test_a_new_folder_in_which_nothing_was_run_can_be_removed(tmp_path: Path) -> None:
    with opened(tmp_path / "out", config_of()) as folder:
        folder.work.mkdir()
        folder.undo()
    assert not (tmp_path / "out").exists()
    folder_of(tmp_path / "old")
    folder_of(tmp_path / "old").undo()
    assert read_config(tmp_path / "old")


def test_sweeps_are_not_among_the_cells_that_are_compared(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for cell in (a_cell(), GridBuilder(setup=SETUP).calibration_cell(partition="iid", reward=2.0)):
        folder.cells.write(cell, replace(a_result(cell), cell=replace(a_result(cell).cell, method=cell.key.method)))
    assert [row.method for row in folder.write().cells] == ["qi-dpfl"]


def test_a_copy_of_results_without_cell_files_accepts_no_runs(tmp_path: Path) -> None:
    folder, cell = folder_of(tmp_path), a_cell()
    folder.cells.write(cell, a_result(cell))
    tables = folder.write()
    folder_of(tmp_path)
    shutil.rmtree(tmp_path / "cells")
    with pytest.raises(NotOurFolder, match="has tables without the files of their cells; choose another --out"):
        folder_of(tmp_path)
    assert gathered(tmp_path) == tables


def test_cells_that_are_not_in_a_table_yet_are_gathered(tmp_path: Path) -> None:
    folder, cell = folder_of(tmp_path), a_cell()
    assert gathered(tmp_path) == Tables()
    folder.cells.write(cell, a_result(cell))
    assert gathered(tmp_path).cells == (a_result(cell).cell,)
