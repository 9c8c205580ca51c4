"""What was run: title, commands, settings and versions of a results folder, for the report and the page."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..results.folder import Config
from ..settings import Choice


@dataclass(frozen=True, kw_only=True)
class About:
    """What was run.

    `scale_note` says what is smaller than in the paper; empty at full scale. `reproducible`: the noise was drawn from
    the seed. `choices` say how values were chosen that the paper does not give.
    """

    title: str
    command: str
    scale_note: str = ""
    reproducible: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()


def about(config: Config) -> About:
    """What was run in a results folder, from its configuration."""
    setup = config.setup
    return About(
        title=f"QI-DPFL on {setup.dataset}",
        command="\n".join(dict.fromkeys(run.command for run in config.runs)),
        scale_note="" if setup.is_full else setup.about,
        reproducible=config.reproducible,
        choices=setup.choices,
        settings=setup.model_dump(mode="json", exclude={"choices"}) | {"reproducible": config.reproducible},
        versions=_all_of(config.versions) | {"audit": "; ".join(run.audit for run in config.runs)},
    )


def flat(settings: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested settings as a flat table with dotted names."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)
    return found


def _all_of(versions: list[dict[str, str]]) -> dict[str, str]:
    """All versions with which the runs of a folder were made."""
    names = dict.fromkeys(name for one in versions for name in one)
    return {name: "; ".join(dict.fromkeys(one[name] for one in versions if name in one)) for name in names}
