"""The settings of the experiments, read from one file: the `settings.toml` of this package, or a user's file."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qidpfl_shared.command_line import first_fault
from qidpfl_shared.protocol.presets import PRESETS, UnknownPreset, merged
from qidpfl_shared.protocol.task_spec import Partition, PartitionKind

SETTINGS = Path(__file__).with_name("settings.toml")
Positive = Annotated[float, Field(gt=0)]


class SettingsError(ValueError):
    """The settings are invalid or have no entry of a name. The message is one line."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartitionSettings(_Settings):
    """How the records are divided among the clients."""

    about: str
    kind: PartitionKind
    concentration: float | None = None

    def partition(self, *, clients: int, seed: int) -> dict[str, Any]:
        """The partition for the specification of a task. In a quality mix every third client holds only two labels."""
        mixed = self.kind is PartitionKind.QUALITY_MIX
        partition = Partition(
            kind=self.kind,
            clients=clients,
            concentration=self.concentration,
            two_class_ordinals=tuple(range(2, clients, 3)) if mixed else (),
            seed=seed,
        )
        return partition.model_dump(mode="json")


class Variant(_Settings):
    """Another way of training, the same for all methods."""

    about: str
    task: dict[str, Any] = {}


class MethodChange(_Settings):
    """What a method changes in its task besides selection, noise and reward."""

    about: str
    task: dict[str, Any]


class Choice(_Settings):
    """How a value of a data set was chosen: the values that were tried, and what decided."""

    setting: str
    value: str
    how: str


class Scale(_Settings):
    """The size of an experiment. Values that are missing here come from the settings of the data set."""

    about: str
    preset: str | None = None
    clients: int | None = Field(default=None, ge=3)
    validation_records: int | None = Field(default=None, ge=2)
    rewards: tuple[Positive, ...] | None = Field(default=None, min_length=4)
    learning_rates: tuple[Positive, ...] | None = Field(default=None, min_length=1)
    draws: int | None = Field(default=None, ge=1, le=100)
    task: dict[str, Any] = {}


class DatasetSettings(_Settings):
    """One data set: its task, its scales and its calibration."""

    preset: str
    default_scale: str
    clients: int = Field(ge=3)
    validation_records: int = Field(ge=2)
    rewards: tuple[Positive, ...] = Field(min_length=4)
    target_gap: Positive
    target_max_gap: Positive
    learning_rates: tuple[Positive, ...] = Field(min_length=1)
    task: dict[str, Any] = {}
    changes: dict[str, dict[str, Any]] = {}
    choices: tuple[Choice, ...] = ()
    scales: dict[str, Scale]


class ClientSettings(_Settings):
    """Settings of all clients."""

    privacy_value: str


class ExperimentSettings(_Settings):
    """The contents of a settings file."""

    common: dict[str, Any]
    clients: ClientSettings
    draws: int = Field(default=1, ge=1, le=100)
    changes: dict[str, MethodChange] = {}
    partitions: dict[str, PartitionSettings]
    variants: dict[str, Variant]
    datasets: dict[str, DatasetSettings]


class Setup(_Settings):
    """One data set at one scale in one variant: the settings that all cells of a run share.

    `draws` is the number of runs of a calibration with each reward. `changes` has the overrides of each change.
    """

    dataset: str
    scale: str
    variant: str
    about: str
    preset: str
    clients: int
    validation_records: int
    rewards: tuple[float, ...]
    target_gap: float
    target_max_gap: float
    learning_rates: tuple[float, ...]
    privacy_value: str
    task: dict[str, Any]
    partitions: dict[str, PartitionSettings]
    # Folders of earlier versions do not have the following.
    draws: int = 1
    changes: dict[str, dict[str, Any]] = {}
    choices: tuple[Choice, ...] = ()

    def change(self, name: str) -> dict[str, Any]:
        """The overrides of a change."""
        return dict(_found(self.changes, name, "change"))

    @property
    def is_full(self) -> bool:
        """Whether this is the full scale of the data set."""
        return self.scale == "full"


def read_settings(path: Path = SETTINGS) -> ExperimentSettings:
    """Read and check a settings file."""
    try:
        return ExperimentSettings.model_validate(tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        raise SettingsError(f"{path}: {first_fault(error)}") from error


def setup(
    settings: ExperimentSettings, *, dataset: str, scale: str | None, variant: str, partitions: Sequence[str]
) -> Setup:
    """Combine the settings of a data set, a scale, a variant and partitions."""
    known = _found(settings.datasets, dataset, "data set")
    scale = scale or known.default_scale
    size = _found(known.scales, scale, f"scale of {dataset}")
    other = _found(settings.variants, variant, "variant")
    preset = size.preset or known.preset
    if preset not in PRESETS:
        raise SettingsError(str(UnknownPreset(preset)))
    task = merged(merged(merged(settings.common, known.task), size.task), other.task)
    return Setup(
        dataset=dataset,
        scale=scale,
        variant=variant,
        about=size.about,
        preset=preset,
        clients=size.clients or known.clients,
        validation_records=size.validation_records or known.validation_records,
        rewards=size.rewards or known.rewards,
        target_gap=known.target_gap,
        target_max_gap=known.target_max_gap,
        learning_rates=size.learning_rates or known.learning_rates,
        privacy_value=settings.clients.privacy_value,
        task=task,
        partitions={name: _found(settings.partitions, name, "partition") for name in partitions},
        draws=size.draws or settings.draws,
        changes={name: merged(change.task, known.changes.get(name, {})) for name, change in settings.changes.items()},
        choices=known.choices,
    )


def _found(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise SettingsError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return known[name]
