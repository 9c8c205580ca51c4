"""The files of cells: what is finished is there again, everything else counts for nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from qidpfl_experiments.cells import Cell, CellFiles, CellResult
from qidpfl_experiments.folder import OtherSetup, ResultsFolder, read_config
from qidpfl_experiments.methods import QI_DPFL
from qidpfl_experiments.plans import Planner
from qidpfl_experiments.playing import failed
from qidpfl_experiments.settings import read_settings, setup
from qidpfl_experiments.tables import ClientRow

SETUP = setup(read_settings(), dataset="digits", scale="smoke", variant="recommended", partitions=["iid"])


def a_cell(seed: int = 0) -> Cell:
    return Planner(setup=SETUP).cell(QI_DPFL, partition="iid", seed=seed, rewards=None, leader=None)


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


def test_the_result_of_other_settings_counts_for_nothing(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), a_cell()
    files.write(cell, a_result(cell))
    assert files.read(replace(cell, privacy_value="1:2")) is None


def test_half_a_file_is_no_result(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), a_cell()
    files.write(cell, a_result(cell))
    (whole,) = (tmp_path / "cells").iterdir()
    whole.rename(whole.with_suffix(".tmp"))
    assert files.read(cell) is None
    assert files.all() == []


def test_a_folder_belongs_to_one_setup(tmp_path: Path) -> None:
    ResultsFolder(tmp_path, SETUP, reproducible=False)
    ResultsFolder(tmp_path, SETUP.model_copy(update={"partitions": {}}), reproducible=False)
    with pytest.raises(OtherSetup, match="holds results with another clients; choose another --out"):
        ResultsFolder(tmp_path, SETUP.model_copy(update={"clients": 7}), reproducible=False)
    with pytest.raises(OtherSetup, match="another reproducible"):
        ResultsFolder(tmp_path, SETUP, reproducible=True)


def test_the_configuration_says_what_was_run_with_what(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path, SETUP, reproducible=False)
    folder.note_run("qidpfl-experiments run", audit="5 checks, 0 violated", wall_s=1.234)
    config = read_config(tmp_path)
    assert config["setup"]["task"]["game"]["horizon"] == config["spec"]["game"]["horizon"] == 3
    assert config["spec"]["aggregation"]["learning_rate"] == 3.0
    assert {"python", "torch", "numpy", "qidpfl-server"} <= config["versions"].keys()
    assert [(run["command"], run["wall_s"]) for run in config["runs"]] == [("qidpfl-experiments run", 1.2)]


def test_sweeps_are_not_among_the_cells_that_are_compared(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path, SETUP, reproducible=False)
    for cell in (a_cell(), Planner(setup=SETUP).calibration_cell(partition="iid", reward=2.0)):
        folder.cells.write(cell, replace(a_result(cell), cell=replace(a_result(cell).cell, method=cell.key.method)))
    assert [row.method for row in folder.write().cells] == ["qi-dpfl"]
