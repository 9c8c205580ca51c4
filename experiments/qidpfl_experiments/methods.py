"""The methods that are compared: the paper's, controls for a fair comparison, ours, and custom ones from users' files.

All methods have the same clients and the same initial model. Most differ in selection, noise and reward only. The
others name the further `changes` of the settings file that they make: another market, other weights, a filter, or the
paper's training as printed.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Role(StrEnum):
    """Why a method is part of the comparison."""

    PAPER = "paper"
    CONTROL = "control"
    OURS = "ours"
    PRINTED = "printed"
    INCENTIVE = "incentive"
    CUSTOM = "own"


class Kept(StrEnum):
    """Which clients the selection keeps."""

    ALL = "all"
    THRESHOLD = "threshold"
    UNION = "union"
    BLIND = "blind"
    CUSTOM = "own"


class Reward(StrEnum):
    """Which reward a round pays."""

    NONE = "none"
    OPTIMAL = "optimal"
    AS_QI_DPFL = "as_qi_dpfl"
    MAX = "max"
    RANDOM = "random"
    CUSTOM = "own"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to run a task. `title` is its name in figures and tables; `rules_digest` is that of a custom method.

    `changes` are names of the settings file, `task` further overrides of a custom method. A method that copies rewards
    or a number of clients copies those of the method `leader`. With `misreport` one client multiplies its privacy value
    by this factor; with `rounds` the task has only so many.
    """

    name: str
    title: str
    kept: Kept
    reward: Reward
    role: Role
    about: str
    rules_digest: str = ""
    changes: tuple[str, ...] = ()
    leader: str = "qi-dpfl"
    misreport: float = 1.0
    rounds: int | None = None
    task: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def noise(self) -> bool:
        """Whether updates are noised. The noise scale follows from the budgets, and only a reward buys budgets."""
        return self.reward is not Reward.NONE

    @property
    def has_rules(self) -> bool:
        """Whether it is a custom method with functions, which the coordinator loads."""
        return Kept.CUSTOM is self.kept or Reward.CUSTOM is self.reward

    @property
    def follows(self) -> bool:
        """Whether its leader has to run first with the same data and seed."""
        return self.kept is Kept.BLIND or self.reward is Reward.AS_QI_DPFL


# The names of changes in the settings file.
LOWPASS, PRINTED = "lowpass", "printed"
AUCTION, MENU, OPTIMAL_WEIGHTS, WIDE_VALUES = "auction", "menu", "optimal-weights", "wide-values"

QI_DPFL = Method(
    name="qi-dpfl",
    title="QI-DPFL",
    kept=Kept.THRESHOLD,
    reward=Reward.OPTIMAL,
    role=Role.PAPER,
    about="clients near the reference, reward and budgets from the game, noise",
)

METHODS = (
    Method(
        name="fedavg",
        title="FedAvg",
        kept=Kept.ALL,
        reward=Reward.NONE,
        role=Role.PAPER,
        about="all clients, no noise, no reward",
    ),
    Method(
        name="fedavg-select",
        title="FedAvg-select",
        kept=Kept.THRESHOLD,
        reward=Reward.NONE,
        role=Role.PAPER,
        about="clients near the reference, no noise, no reward",
    ),
    Method(
        name="fedavg-dp",
        title="FedAvg-DP",
        kept=Kept.ALL,
        reward=Reward.AS_QI_DPFL,
        role=Role.PAPER,
        about="all clients, noise, the reward that QI-DPFL pays in each round",
    ),
    QI_DPFL,
    Method(
        name="max",
        title="Max",
        kept=Kept.ALL,
        reward=Reward.MAX,
        role=Role.PAPER,
        about="all clients, noise, the largest admissible reward in every round",
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
        about="all clients, noise, a random admissible reward in every round",
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
        about="as many clients as QI-DPFL keeps, chosen at random; no noise, no reward",
    ),
    Method(
        name="blind-dp",
        title="Blind-DP",
        kept=Kept.BLIND,
        reward=Reward.AS_QI_DPFL,
        role=Role.CONTROL,
        about="as many clients as QI-DPFL keeps, chosen at random; noise, the reward that QI-DPFL pays",
    ),
    Method(
        name="fedavg-dp-optimal",
        title="FedAvg-DP (own reward)",
        kept=Kept.ALL,
        reward=Reward.OPTIMAL,
        role=Role.CONTROL,
        about="all clients, noise, the reward that is optimal for all clients",
    ),
    Method(
        name="qi-dpfl-union",
        title="QI-DPFL (union)",
        kept=Kept.UNION,
        reward=Reward.OPTIMAL,
        role=Role.OURS,
        about="clients whose pooled labels are nearest to the reference, reward and budgets from the game, noise",
    ),
    Method(
        name="fedavg-dp-lowpass",
        title="FedAvg-DP (low-pass)",
        kept=Kept.ALL,
        reward=Reward.AS_QI_DPFL,
        role=Role.CONTROL,
        about="FedAvg-DP with a low-pass of the average and its own learning rate: the control for QI-auction+",
        changes=(LOWPASS,),
    ),
    Method(
        name="qi-auction",
        title="QI-auction",
        kept=Kept.ALL,
        reward=Reward.AS_QI_DPFL,
        role=Role.OURS,
        about="FedAvg-DP with the auction as its market and nothing else; the reward that QI-DPFL pays",
        changes=(AUCTION,),
    ),
    Method(
        name="qi-auction-plus",
        title="QI-auction+",
        kept=Kept.ALL,
        reward=Reward.AS_QI_DPFL,
        role=Role.OURS,
        about="the auction, weights that balance noise and labels, and the low-pass; the reward that QI-DPFL pays",
        changes=(AUCTION, OPTIMAL_WEIGHTS, LOWPASS),
    ),
    Method(
        name="printed-fedavg",
        title="FedAvg (printed)",
        kept=Kept.ALL,
        reward=Reward.NONE,
        role=Role.PRINTED,
        about="FedAvg with the paper's training as printed: local SGD, uniform weights",
        changes=(PRINTED,),
    ),
    Method(
        name="printed-fedavg-select",
        title="FedAvg-select (printed)",
        kept=Kept.THRESHOLD,
        reward=Reward.NONE,
        role=Role.PRINTED,
        about="FedAvg-select with the paper's training as printed",
        changes=(PRINTED,),
    ),
    Method(
        name="printed-fedavg-dp",
        title="FedAvg-DP (printed)",
        kept=Kept.ALL,
        reward=Reward.AS_QI_DPFL,
        role=Role.PRINTED,
        about="FedAvg-DP with the paper's training and noise as printed (heuristic), paying as QI-DPFL (printed) does",
        changes=(PRINTED,),
        leader="printed-qi-dpfl",
    ),
    Method(
        name="printed-qi-dpfl",
        title="QI-DPFL (printed)",
        kept=Kept.THRESHOLD,
        reward=Reward.OPTIMAL,
        role=Role.PRINTED,
        about="QI-DPFL with the paper's training and noise as printed (heuristic: no privacy guarantee)",
        changes=(PRINTED,),
    ),
)

# In these runs one client lies about its privacy value. Its utility matters, not the model: few rounds are enough.
_LIES = {"honest": (1.0, "tells the truth"), "low": (0.8, "reports 20 % less"), "high": (1.2, "reports 20 % more")}
_MARKETS: dict[str, tuple[str, ...]] = {"contest": (), "auction": (AUCTION,), "menu": (MENU,)}
INCENTIVES = tuple(
    Method(
        name=f"{market}-{lie}",
        title=f"{market.capitalize()}, {lie}",
        kept=Kept.ALL,
        reward=Reward.AS_QI_DPFL,
        role=Role.INCENTIVE,
        about=f"market {market}, a client {does}; the first rounds of QI-DPFL's rewards",
        changes=(*changes, WIDE_VALUES),
        misreport=factor,
        rounds=3,
    )
    for market, changes in _MARKETS.items()
    for lie, (factor, does) in _LIES.items()
)
BY_NAME = {method.name: method for method in (*METHODS, *INCENTIVES)}
# The name of a group of methods that are not in `all`.
_GROUPS = {"all": METHODS, "incentives": INCENTIVES}
# Cells of a sweep have these names instead of the name of a method.
SWEEPS = ("calibration", "tuning")


class UnknownMethod(ValueError):
    """No method has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no method {name!r}; there are {', '.join([*_GROUPS, *BY_NAME])}")


def methods_named(names: Iterable[str]) -> tuple[Method, ...]:
    """The methods with these names, in their order. `all` is METHODS, `incentives` the runs in which a client lies."""
    wanted = set(names)
    unknown = sorted(wanted - BY_NAME.keys() - _GROUPS.keys())
    if unknown:
        raise UnknownMethod(unknown[0])
    grouped = {method.name for group in wanted & _GROUPS.keys() for method in _GROUPS[group]}
    return tuple(method for method in BY_NAME.values() if method.name in wanted | grouped)


# A report could not distinguish methods whose names differ only in upper and lower case.
_TAKEN = {name.lower() for method in BY_NAME.values() for name in (method.name, method.title)} | {*SWEEPS, *_GROUPS}


# The parts of a task that a custom method may change: clients, data, network and noise must be those of all methods.
_CHANGEABLE = frozenset({"aggregation", "game"})


class CustomMethodError(ValueError):
    """A file cannot be used as a method. The message is one line."""


def custom_methods(paths: Iterable[Path]) -> tuple[Method, ...]:
    """The methods in these files."""
    methods: dict[str, Method] = {}
    for path in paths:
        method = custom_method(path)
        if method.name.lower() in methods:
            raise CustomMethodError(f"two files have the name {path.stem}: rename {path}")
        methods[method.name.lower()] = method
    return tuple(methods.values())


def custom_method(path: Path) -> Method:
    """The method in a file that defines `reward(question)`, `select(question)` or `TASK`; see docs/experiments.md.

    The method has the name of the file. A function that the file does not define is that of QI-DPFL. `TASK` is a
    literal dictionary of overrides: another market, other weights, a filter. This process reads the file but does not
    run it: its functions run in the coordinator.
    """
    text = path.read_bytes()
    try:
        module = ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise CustomMethodError(f"{path} is not valid Python: {error}") from error
    defined = {part.name for part in module.body if isinstance(part, ast.FunctionDef)}
    task = _task_in(module, path)
    if not defined & {"reward", "select"} and not task:
        raise CustomMethodError(f"{path} defines neither reward(question) nor select(question) nor TASK")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", path.stem):
        raise CustomMethodError(f"{path.stem!r} cannot be the name of a method: use letters, digits, _ and - only")
    if path.suffix != ".py":
        raise CustomMethodError(f"{path}: the name of a Python file must end in .py")
    if path.stem.lower() in _TAKEN:
        raise CustomMethodError(f"the name {path.stem} is already used: rename {path}")
    about = (ast.get_docstring(module) or "a custom method").strip().splitlines()[0]
    return Method(
        name=path.stem,
        title=path.stem,
        kept=Kept.CUSTOM if "select" in defined else Kept.THRESHOLD,
        reward=Reward.CUSTOM if "reward" in defined else Reward.OPTIMAL,
        role=Role.CUSTOM,
        about=about,
        rules_digest=hashlib.sha256(text).hexdigest(),
        task=task,
    )


def _task_in(module: ast.Module, path: Path) -> dict[str, Any]:
    """The literal dictionary `TASK` of a file; empty if it has none."""
    for part in module.body:
        if isinstance(part, ast.Assign) and [ast.unparse(target) for target in part.targets] == ["TASK"]:
            try:
                task = ast.literal_eval(part.value)
            except ValueError:
                task = None
            if not isinstance(task, dict) or not all(isinstance(values, dict) for values in task.values()):
                raise CustomMethodError(f"{path}: TASK must be a literal dictionary of dictionaries, without calls")
            if set(task) - _CHANGEABLE:
                raise CustomMethodError(f"{path}: TASK may change {' and '.join(sorted(_CHANGEABLE))} only")
            return task
    return {}
