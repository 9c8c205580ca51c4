"""The methods that are compared: the paper's, the controls that a fair comparison needs, and ours.

All of them have the same clients, local computation and start; only selection, noise and reward differ.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Role(StrEnum):
    """Why a method is there."""

    PAPER = "paper"
    CONTROL = "control"
    OURS = "ours"
    CUSTOM = "own"


class Kept(StrEnum):
    """Which clients are kept."""

    ALL = "all"
    THRESHOLD = "threshold"
    UNION = "union"
    BLIND = "blind"
    CUSTOM = "own"


class Reward(StrEnum):
    """What is paid in a round."""

    NONE = "none"
    OPTIMAL = "optimal"
    AS_QI_DPFL = "as_qi_dpfl"
    MAX = "max"
    RANDOM = "random"
    CUSTOM = "own"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to run a task. `title` is how figures and tables name it; a user's own rules have a digest."""

    name: str
    title: str
    kept: Kept
    reward: Reward
    role: Role
    about: str
    rules_digest: str = ""

    @property
    def noise(self) -> bool:
        """Whether updates are noised: a reward buys budgets, and without one there is nothing to size noise by."""
        return self.reward is not Reward.NONE

    @property
    def follows_qi_dpfl(self) -> bool:
        """Whether QI-DPFL has to be run first, with the same data and seed."""
        return self.kept is Kept.BLIND or self.reward is Reward.AS_QI_DPFL


QI_DPFL = Method(
    name="qi-dpfl",
    title="QI-DPFL",
    kept=Kept.THRESHOLD,
    reward=Reward.OPTIMAL,
    role=Role.PAPER,
    about="clients near the reference, the game, noise",
)

METHODS = (
    Method(
        name="fedavg",
        title="FedAvg",
        kept=Kept.ALL,
        reward=Reward.NONE,
        role=Role.PAPER,
        about="everybody, no noise, no money",
    ),
    Method(
        name="fedavg-select",
        title="FedAvg-select",
        kept=Kept.THRESHOLD,
        reward=Reward.NONE,
        role=Role.PAPER,
        about="clients near the reference, no noise, no money",
    ),
    Method(
        name="fedavg-dp",
        title="FedAvg-DP",
        kept=Kept.ALL,
        reward=Reward.AS_QI_DPFL,
        role=Role.PAPER,
        about="everybody, noise, round by round the reward that QI-DPFL pays",
    ),
    QI_DPFL,
    Method(
        name="max",
        title="Max",
        kept=Kept.ALL,
        reward=Reward.MAX,
        role=Role.PAPER,
        about="everybody, noise, the largest admissible reward in every round",
    ),
    Method(
        name="max-select",
        title="Max-select",
        kept=Kept.THRESHOLD,
        reward=Reward.MAX,
        role=Role.PAPER,
        about="clients near the reference, noise, the largest admissible reward in every round",
    ),
    Method(
        name="random",
        title="Random",
        kept=Kept.ALL,
        reward=Reward.RANDOM,
        role=Role.PAPER,
        about="everybody, noise, a random admissible reward in every round",
    ),
    Method(
        name="random-select",
        title="Random-select",
        kept=Kept.THRESHOLD,
        reward=Reward.RANDOM,
        role=Role.PAPER,
        about="clients near the reference, noise, a random admissible reward in every round",
    ),
    Method(
        name="blind",
        title="Blind",
        kept=Kept.BLIND,
        reward=Reward.NONE,
        role=Role.CONTROL,
        about="as many clients as QI-DPFL keeps, chosen blindly; no noise, no money",
    ),
    Method(
        name="blind-dp",
        title="Blind-DP",
        kept=Kept.BLIND,
        reward=Reward.AS_QI_DPFL,
        role=Role.CONTROL,
        about="as many clients as QI-DPFL keeps, chosen blindly; noise, and the reward that QI-DPFL pays",
    ),
    Method(
        name="fedavg-dp-optimal",
        title="FedAvg-DP (own reward)",
        kept=Kept.ALL,
        reward=Reward.OPTIMAL,
        role=Role.CONTROL,
        about="everybody, noise, the reward that is optimal for everybody",
    ),
    Method(
        name="qi-dpfl-union",
        title="QI-DPFL (union)",
        kept=Kept.UNION,
        reward=Reward.OPTIMAL,
        role=Role.OURS,
        about="the clients whose pooled labels are nearest to the reference, the game, noise",
    ),
)
BY_NAME = {method.name: method for method in METHODS}
# Cells of a sweep bear these names instead of a method's.
SWEEPS = ("calibration", "tuning")


class UnknownMethod(ValueError):
    """There is no method of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no method {name!r}; there are all, {', '.join(BY_NAME)}")


def methods_named(names: Iterable[str]) -> tuple[Method, ...]:
    """The methods of these names, in our order; `all` stands for all of them."""
    wanted = set(names)
    unknown = sorted(wanted - BY_NAME.keys() - {"all"})
    if unknown:
        raise UnknownMethod(unknown[0])
    return tuple(method for method in METHODS if "all" in wanted or method.name in wanted)


# Methods that differ in capitals only could not be told apart in a report.
_TAKEN = {name.lower() for method in METHODS for name in (method.name, method.title)} | {*SWEEPS, "all"}


class CustomMethodError(ValueError):
    """A file cannot be a method; the message is one line."""


def custom_methods(paths: Iterable[Path]) -> tuple[Method, ...]:
    """The methods of several files."""
    methods: dict[str, Method] = {}
    for path in paths:
        method = custom_method(path)
        if method.name.lower() in methods:
            raise CustomMethodError(f"there are two files of the name {path.stem}: give {path} another one")
        methods[method.name.lower()] = method
    return tuple(methods.values())


def custom_method(path: Path) -> Method:
    """The method of a file that defines `reward(question)`, `select(question)` or both; see docs/own-rules.md.

    Its name is that of the file. What it does not define is as in QI-DPFL. The file is read here, not run: it runs in
    the coordinator.
    """
    text = path.read_bytes()
    try:
        module = ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise CustomMethodError(f"{path} is not Python: {error}") from error
    defined = {part.name for part in module.body if isinstance(part, ast.FunctionDef)}
    if not defined & {"reward", "select"}:
        raise CustomMethodError(f"{path} defines neither reward(question) nor select(question)")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", path.stem):
        raise CustomMethodError(f"{path.stem!r} cannot be the name of a method: letters, digits, _ and - only")
    if path.suffix != ".py":
        raise CustomMethodError(f"{path}: the name of a file with Python code ends in .py")
    if path.stem.lower() in _TAKEN:
        raise CustomMethodError(f"{path.stem} already means something else: give {path} another name")
    about = (ast.get_docstring(module) or "rules of your own").strip().splitlines()[0]
    return Method(
        name=path.stem,
        title=path.stem,
        kept=Kept.CUSTOM if "select" in defined else Kept.THRESHOLD,
        reward=Reward.CUSTOM if "reward" in defined else Reward.OPTIMAL,
        role=Role.CUSTOM,
        about=about,
        rules_digest=hashlib.sha256(text).hexdigest(),
    )
