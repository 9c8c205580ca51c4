"""The grid: the cells of all methods, partitions and seeds, and of the sweeps, built from the settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qidpfl_shared.core.money import to_micro
from qidpfl_shared.core.reward import RewardRange
from qidpfl_shared.protocol.presets import merged, preset

from ..methods import LOWPASS, QI_DPFL, Kept, Method, Reward, Role
from ..results.calibration import range_overrides
from ..results.cells import Cell, CellResult
from ..results.tables import Key
from ..settings import Setup

# Sweeps use another division of the data than the comparison, so that they are not tuned on it.
SWEEP_SEED = 1_000_000


class MissingPrerequisite(Exception):
    """A cell cannot be run because a result that it depends on is missing."""


@dataclass(frozen=True, kw_only=True)
class GridBuilder:
    """Builds the cells of a run. With `reproducible` all methods have common noise, which protects nothing."""

    setup: Setup
    reproducible: bool = False

    def cell(
        self, method: Method, *, partition: str, seed: int, rewards: RewardRange | None, leader: CellResult | None
    ) -> Cell:
        """The cell of a method on a partition with a seed. `leader` is the result of its leader on the same ones."""
        if method.follows and (leader is None or not leader.finished):
            raise MissingPrerequisite(f"the run of {method.leader} that gives its rewards and number of clients failed")
        game = _game(method, seed, rewards, leader)
        changes = merged(self._changes(method), merged(_selection(method, seed, leader), game))
        if method.rounds is not None:
            changes = merged(changes, _shortened(method.rounds, changes["game"]))
        return self._cell(
            method.name, partition, seed, changes, rules_digest=method.rules_digest, misreport=method.misreport
        )

    def can_run(self, method: Method) -> bool:
        """Whether the tasks of this data set allow the method: a low-pass needs a model whose rows are images."""
        return LOWPASS not in method.changes or method.role is not Role.CONTROL or self._has_images

    @property
    def _has_images(self) -> bool:
        return preset(self.setup.preset, self.setup.task).image_rows is not None

    def _changes(self, method: Method) -> dict[str, Any]:
        """The overrides of a method. A method with several changes leaves out a filter that the network cannot have."""
        found: dict[str, Any] = {}
        for name in method.changes:
            if name != LOWPASS or self._has_images:
                found = merged(found, self.setup.change(name))
        return merged(found, method.task)

    def whole_specs(self) -> dict[str, dict[str, Any]]:
        """The complete task of QI-DPFL on each partition, with all values of the preset."""
        cells = {
            partition: self.cell(QI_DPFL, partition=partition, seed=0, rewards=None, leader=None)
            for partition in self.setup.partitions
        }
        return {partition: cell.spec.model_dump(mode="json") for partition, cell in cells.items()}

    def placeholder(self, method: Method, *, partition: str, seed: int) -> Cell:
        """The cell under which a missing prerequisite is reported. It is never run."""
        return self._cell(method.name, partition, seed, {})

    def calibration_cell(self, *, partition: str, reward: float, draw: int = 0) -> Cell:
        """One run of a calibration: the same reward in every round, evaluated on validation records."""
        game = {"policy": "fixed", "fixed_reward_micro": to_micro(reward)}
        variation = f"reward-{reward:g}" + (f".draw-{draw}" if draw else "")
        return self._sweep_cell(partition, "calibration", variation, {"game": game}, draw=draw)

    def tuning_cell(self, *, partition: str, learning_rate: float, method: Method = QI_DPFL) -> Cell:
        """One run of a learning-rate search: a method with its optimal reward, evaluated on validation records."""
        rate = {"aggregation": {"learning_rate": learning_rate}, "game": {"policy": "optimal"}}
        changes = merged(merged(self._changes(method), {"selection": {"rule": method.kept.value}}), rate)
        variation = "" if method == QI_DPFL else f"{method.name}."
        return self._sweep_cell(partition, "tuning", f"{variation}rate-{learning_rate:g}", changes)

    def _sweep_cell(
        self, partition: str, method: str, variation: str, changes: Mapping[str, Any], *, draw: int = 0
    ) -> Cell:
        validation = {"workload": {"validation_records": self.setup.validation_records}}
        return self._cell(method, partition, SWEEP_SEED, merged(validation, changes), variation=variation, draw=draw)

    def _cell(
        self,
        method: str,
        partition: str,
        seed: int,
        changes: Mapping[str, Any],
        *,
        variation: str = "",
        rules_digest: str = "",
        draw: int = 0,
        misreport: float = 1.0,
    ) -> Cell:
        setup = self.setup
        divided = setup.partitions[partition].partition(clients=setup.clients, seed=seed)
        common = {
            "workload": {"partition": divided},
            "rounds": {"expected_clients": setup.clients},
            "privacy": {"lifetime_rho": None, "audit": "flag"},
            # The paper's methods bound no client, and all clients of an experiment are honest.
            "defence": None,
        }
        return Cell(
            key=Key(dataset=setup.dataset, partition=partition, method=method, seed=seed),
            scale=setup.scale,
            preset=setup.preset,
            overrides=merged(merged(setup.task, common), changes),
            clients=setup.clients,
            privacy_value=setup.privacy_value,
            unsafe_seed=seed if self.reproducible else None,
            draw=draw,
            misreport=misreport,
            variation=variation,
            rules_digest=rules_digest,
        )


def _selection(method: Method, seed: int, leader: CellResult | None) -> dict[str, Any]:
    match method.kept:
        case Kept.BLIND:
            assert leader is not None
            selection = {"rule": "random", "random_clients": leader.cell.selected, "seed": seed}
        case Kept.CUSTOM:
            selection = {"rule": "own", "own_rules": method.name}
        case kept:
            selection = {"rule": kept.value}
    return {"selection": selection}


def _game(method: Method, seed: int, rewards: RewardRange | None, leader: CellResult | None) -> dict[str, Any]:
    if method.reward is Reward.NONE:
        return {"game": {"policy": "none"}, "privacy": {"noise": False}}
    if method.reward is Reward.AS_QI_DPFL:
        assert leader is not None
        schedule = [to_micro(row.reward) for row in leader.rounds]
        return {"game": {"policy": "fixed", "reward_schedule_micro": schedule}}
    own = {"own_rules": method.name} if method.reward is Reward.CUSTOM else {}
    return {"game": {"policy": method.reward.value, "seed": seed, **own, **range_overrides(rewards)}}


def _shortened(rounds: int, game: Mapping[str, Any]) -> dict[str, Any]:
    """The first rounds only; a game without a schedule keeps its rewards."""
    schedule = game.get("reward_schedule_micro")
    if schedule is None:
        return {"game": {"horizon": rounds}}
    return {"game": {"horizon": min(rounds, len(schedule)), "reward_schedule_micro": schedule[:rounds]}}
