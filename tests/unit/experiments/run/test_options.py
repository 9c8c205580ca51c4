"""The options of a run: which engine, and what a cell gets on a cluster, and the seeds."""

import os
from typing import Any

import pytest

from qidpfl_experiments.run.options import CLUSTER_JOBS, TIME_LIMIT_MIN, EngineName, request, seeds_in
from qidpfl_experiments.settings import SettingsError


def test_by_default_cells_run_on_this_machine_one_per_core() -> None:
    asked = request(dataset="digits")
    assert asked.engine.name is EngineName.LOCAL and asked.jobs == (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("given", "jobs"),
    [
        ({"on": EngineName.RAY}, CLUSTER_JOBS),
        ({"on": EngineName.SLURM}, CLUSTER_JOBS),
        # Processes of this machine have no queue.
        ({"on": EngineName.SLURM, "address": "local"}, os.cpu_count() or 1),
        ({"on": EngineName.RAY, "jobs": 7}, 7),
    ],
)
def test_the_queue_of_a_cluster_gets_many_cells(given: dict[str, Any], jobs: int) -> None:
    asked = request(dataset="digits", **given)
    assert asked.jobs == jobs and (asked.engine.cpus, asked.engine.gpus) == (1, 0)
    assert asked.engine.time_limit_min == TIME_LIMIT_MIN


def test_options_of_sbatch_are_taken_apart() -> None:
    slurm = ["partition=gpu", "mem=8G", "exclusive", "gres=gpu:a100:1"]
    asked = request(dataset="digits", on=EngineName.SLURM, slurm=slurm, cpus=4, time_limit=30.0)
    assert asked.engine.slurm == {"partition": "gpu", "mem": "8G", "exclusive": "", "gres": "gpu:a100:1"}
    assert (asked.engine.cpus, asked.engine.time_limit_min) == (4, 30.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpus": 2}, "--cpus needs --on slurm or --on ray"),
        ({"gpus": 1}, "--gpus needs --on slurm or --on ray"),
        ({"time_limit": 5.0}, "--time-limit needs --on slurm or --on ray"),
        ({"address": "auto"}, "--address needs --on slurm or --on ray"),
        ({"slurm": ["mem=1G"]}, "--slurm needs --on slurm"),
        ({"on": EngineName.RAY, "slurm": ["mem=1G"]}, "--slurm needs --on slurm"),
        (
            {"on": EngineName.SLURM, "address": "head:6379"},
            "with --on slurm, --address can only be local, not 'head:6379'",
        ),
        *(
            ({"on": EngineName.SLURM, "slurm": [text]}, "--slurm is KEY=VALUE without dashes")
            for text in ("--mem=1G", "mem= 1G", "mem=", "", "Mem=1G", "mem=1G\n#SBATCH --account=x")
        ),
    ],
)
def test_options_without_an_effect_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        request(dataset="digits", **given)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1", (0,)), ("3", (0, 1, 2)), ("3,5", (3, 5)), ("4-6", (4, 5, 6)), ("7-7", (7,)), ("1, 3-4,3", (1, 3, 4))],
)
def test_a_number_is_how_many_and_a_list_or_a_range_names_them(text: str, seeds: tuple[int, ...]) -> None:
    assert seeds_in(text) == seeds


@pytest.mark.parametrize(
    "text", ["0", "-1", "", ",", "two", "3-", "6-4", "1001", "1.5", "0-99999999", "1000000-1000000"]
)
def test_anything_else_is_one_line(text: str) -> None:
    with pytest.raises(SettingsError, match=r"seeds|empty"):
        seeds_in(text)
