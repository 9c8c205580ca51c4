"""The ready-made tasks by name, and how overrides change them."""

from collections.abc import Callable, Mapping
from typing import Any

from ..core.money import MICRO
from ..core.reward import Weighting
from . import layouts
from .mechanism_specs import BoltOn, GradientOnce, MechanismSpec, PaperLiteral
from .task_spec import (
    AggregationSpec,
    AuditMode,
    BoundsSpec,
    DefenceSpec,
    GameSpec,
    Partition,
    PartitionKind,
    PrivacySpec,
    RoundsSpec,
    SelectionRule,
    SelectionSpec,
    TaskSpec,
    WorkloadSpec,
)
from .task_spec.sizes import sized

# Records per label in the training part of EMNIST ByClass (a stratified seventh of it): digits, A-Z, a-z.
EMNIST_TRAINING_LABELS = (
    *(5192, 5688, 5274, 5364, 5049, 4664, 5126, 5516, 5062, 5109),
    *(954, 582, 1563, 700, 765, 1294, 402, 468, 1840, 563, 343, 728, 1334),
    *(1214, 3734, 1255, 371, 727, 3152, 1416, 1799, 715, 724, 388, 717, 417),
    *(1477, 767, 388, 1512, 3677, 359, 529, 1329, 384, 285, 419, 2278, 417),
    *(1706, 419, 331, 454, 2085, 393, 2664, 433, 421, 420, 422, 342, 405),
)


class UnknownPreset(KeyError):
    """There is no preset of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"unknown preset {self.name!r}; use one of {', '.join([*PRESETS, OWN])}"


def preset(
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    clients: int | None = None,
    rounds: int | None = None,
) -> TaskSpec:
    """Return the task of this name for so many clients and rounds, with some of its values replaced.

    Overrides have the structure of the spec in JSON. Objects are merged; all other values are replaced. Another
    mechanism replaces the whole old one, because their parameters differ. Overrides win over `clients` and `rounds`.

    Raises `UnknownPreset`, and pydantic's `ValidationError` if the result is not a valid task.

    >>> preset("digits", {"game": {"horizon": 5}}).game.horizon
    5
    """
    makers = {**PRESETS, OWN: own}
    if name not in makers:
        raise UnknownPreset(name)
    spec = makers[name]()
    changes = merged(sized(spec, clients=clients, rounds=rounds), overrides or {})
    if changes:
        spec = TaskSpec.model_validate(merged(spec.model_dump(mode="json"), changes))
    return spec.current


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge overrides into a spec, or into other overrides, by the rules of `preset`."""
    result = dict(base)
    for key, value in overrides.items():
        known = result.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping) and _same_kind(known, value):
            result[key] = merged(known, value)
        else:
            result[key] = value
    return result


def _same_kind(known: Mapping[str, Any], override: Mapping[str, Any]) -> bool:
    return "name" not in override or override["name"] == known.get("name")


def _task(
    *,
    dataset: str,
    network: str,
    partition: Partition,
    horizon: int,
    discount: float,
    privacy_weight: float,
    convexity: float,
    histogram_rho: float,
    lifetime_rho: float,
    rho_max: float,
    reward_max: int,
    mechanism: MechanismSpec | None = None,
    aggregation: AggregationSpec,
    selection: SelectionSpec | None = None,
    min_share: float = 0.3,
    defended: bool = True,
) -> TaskSpec:
    layout = layouts.built_in(dataset=dataset, network=network)
    assert layout is not None
    return TaskSpec(
        workload=WorkloadSpec(
            dataset=dataset,
            network=network,
            labels=layouts.DATA_SETS[dataset].labels,
            convex=network == "linear",
            partition=partition,
        ),
        layout=layout,
        selection=selection or SelectionSpec(),
        game=GameSpec(
            horizon=horizon,
            discount=discount,
            privacy_weight=privacy_weight,
            convexity=convexity,
            min_share=min_share,
        ),
        privacy=PrivacySpec(
            mechanism=mechanism or GradientOnce(clip_norm=1.0),
            histogram_rho=histogram_rho,
            lifetime_rho=lifetime_rho,
            audit=AuditMode.REJECT if defended else AuditMode.FLAG,
        ),
        aggregation=aggregation,
        rounds=RoundsSpec(expected_clients=partition.clients),
        bounds=BoundsSpec(
            rho_max=rho_max,
            rho_min=rho_max / 1000,
            # A client that reports half its privacy value takes a large part of the reward.
            privacy_value_min=0.9 if defended else 0.01,
            privacy_value_max=1.1 if defended else 100.0,
            reward_max_micro=reward_max * MICRO,
            reward_total_micro=reward_max * horizon * MICRO,
        ),
        defence=DefenceSpec() if defended else None,
    )


def digits() -> TaskSpec:
    """Scikit-learn's digits, which need no download: ten clients, three of them with two labels only. A client has
    about 110 records and epsilon is about 12: a demonstration, not protection."""
    partition = Partition(kind=PartitionKind.QUALITY_MIX, clients=10, concentration=8.0, two_class_ordinals=(2, 5, 8))
    return _task(
        dataset="digits",
        network="linear",
        partition=partition,
        horizon=20,
        discount=0.93,
        privacy_weight=30.0,
        convexity=0.03,
        histogram_rho=0.1,
        lifetime_rho=3.0,
        rho_max=0.5,
        reward_max=300,
        aggregation=AggregationSpec(learning_rate=3.0, momentum=0.7),
    )


def _mnist(
    partition: Partition | None = None,
    mechanism: MechanismSpec | None = None,
    *,
    convexity: float = 0.012,
    rho_max: float = 0.02,
    aggregation: AggregationSpec | None = None,
    min_share: float = 0.3,
    defended: bool = True,
) -> TaskSpec:
    partition = partition or Partition(kind=PartitionKind.DIRICHLET_CLASS, clients=20, concentration=1.0)
    return _task(
        dataset="mnist",
        network="linear",
        partition=partition,
        horizon=30,
        discount=0.9429,
        privacy_weight=1000.0,
        convexity=convexity,
        histogram_rho=0.01,
        lifetime_rho=0.5,
        rho_max=rho_max,
        reward_max=400,
        mechanism=mechanism,
        aggregation=aggregation or AggregationSpec(learning_rate=2.0, momentum=0.8),
        min_share=min_share,
        defended=defended,
    )


def mnist() -> TaskSpec:
    """MNIST with softmax regression: twenty clients of about 3000 records, class-wise Dirichlet(1)."""
    return _mnist()


def mnist_bad_clients() -> TaskSpec:
    """MNIST where six of twenty clients hold two labels only. The union is skewed, and selection visibly helps."""
    partition = Partition(
        kind=PartitionKind.QUALITY_MIX, clients=20, concentration=8.0, two_class_ordinals=(2, 5, 8, 11, 14, 17)
    )
    return _mnist(partition)


def mnist_paper() -> TaskSpec:
    """The paper's local SGD on MNIST with a proof: bolt_on at its rate 0.01, uniform weights, no client left out."""
    return _mnist(
        mechanism=BoltOn(learning_rate=0.01, epochs=1, batch_size=64, feature_norm=10.0),
        convexity=0.085,
        rho_max=0.2,
        aggregation=AggregationSpec(weighting=Weighting.UNIFORM),
        min_share=0.0,
        defended=False,
    )


def mnist_paper_heuristic() -> TaskSpec:
    """The paper's local SGD on MNIST with its noise as printed: heuristic noise, no privacy guarantee."""
    return _mnist(
        mechanism=PaperLiteral(clip_norm=1.0, learning_rate=0.01, epochs=1, batch_size=64),
        rho_max=0.2,
        aggregation=AggregationSpec(weighting=Weighting.UNIFORM),
        min_share=0.0,
        defended=False,
    )


def _emnist(
    *, dataset: str, clients: int, privacy_weight: float, histogram_rho: float, lifetime_rho: float, rho_max: float
) -> TaskSpec:
    partition = Partition(kind=PartitionKind.DIRICHLET_CLASS, clients=clients, concentration=1.0)
    return _task(
        dataset=dataset,
        network="lenet",
        partition=partition,
        horizon=30,
        discount=0.901,
        privacy_weight=privacy_weight,
        convexity=0.012,
        histogram_rho=histogram_rho,
        lifetime_rho=lifetime_rho,
        rho_max=rho_max,
        reward_max=800,
        aggregation=AggregationSpec(learning_rate=3.0, momentum=0.9),
        # A uniform reference would refuse all clients: half of the records are digits.
        selection=SelectionSpec(reference="given", reference_weights=tuple(map(float, EMNIST_TRAINING_LABELS))),
    )


def emnist() -> TaskSpec:
    """EMNIST ByClass, 62 labels, with a network like LeNet-5: twenty clients of about 5000 records."""
    return _emnist(
        dataset="emnist", clients=20, privacy_weight=300.0, histogram_rho=0.01, lifetime_rho=1.0, rho_max=0.1
    )


def emnist_small() -> TaskSpec:
    """EMNIST ByClass for laptops: ten clients of 1000 records. At that size epsilon is about 27."""
    # With a smaller budget the noise would be as large as the differences between clients, and most would be refused.
    return _emnist(
        dataset="emnist-small", clients=10, privacy_weight=30.0, histogram_rho=0.1, lifetime_rho=10.0, rho_max=2.0
    )


def _cifar10(network: str, *, lifetime_rho: float, rho_max: float) -> TaskSpec:
    partition = Partition(kind=PartitionKind.DIRICHLET_CLASS, clients=10, concentration=1.0)
    return _task(
        dataset="cifar10",
        network=network,
        partition=partition,
        horizon=80,
        discount=0.9664,
        privacy_weight=100.0,
        convexity=0.004,
        histogram_rho=0.01,
        lifetime_rho=lifetime_rho,
        rho_max=rho_max,
        reward_max=2000,
        aggregation=AggregationSpec(learning_rate=1.0, momentum=0.9),
    )


def cifar10() -> TaskSpec:
    """CIFAR-10 with a small network: ten clients of about 5000 records, epsilon about 13."""
    return _cifar10("lenet", lifetime_rho=4.0, rho_max=0.3)


def cifar10_paper() -> TaskSpec:
    """CIFAR-10 with the paper's network (McMahan et al.): cannot be both private and accurate with 5000 records per
    client; epsilon is above 30."""
    return _cifar10("mcmahan", lifetime_rho=15.0, rho_max=1.0)


OWN = "own"


def own() -> TaskSpec:
    """The neutral preset for a workload of your own: no partition, all clients take part, and people have time to start
    their clients. Twenty rounds fit into the limits that a client has by default (epsilon 2.8). The workload and the
    layout are placeholders."""
    rounds = 20
    reward_max = 100 * MICRO
    return TaskSpec(
        workload=WorkloadSpec(dataset=OWN, network=OWN, labels=2, convex=False, partition=None),
        layout=layouts.linear(inputs=1, labels=2),
        selection=SelectionSpec(rule=SelectionRule.ALL),
        game=GameSpec(horizon=rounds, discount=0.95, privacy_weight=1000.0, convexity=0.012),
        privacy=PrivacySpec(
            mechanism=GradientOnce(clip_norm=1.0), histogram_rho=0.02, lifetime_rho=0.2, audit=AuditMode.FLAG
        ),
        aggregation=AggregationSpec(learning_rate=1.0, momentum=0.7),
        rounds=RoundsSpec(
            enrolment_window_s=3600.0, quiet_s=600.0, declare_s=60.0, deliver_s=300.0, min_clients=3, min_updates=2
        ),
        # (0.2 - 0.02) / 20: the rest of the lifetime budget, in equal parts.
        bounds=BoundsSpec(
            rho_max=0.009,
            rho_min=0.009 / 1000,
            privacy_value_min=0.1,
            privacy_value_max=10.0,
            reward_max_micro=reward_max,
            reward_total_micro=reward_max * rounds,
        ),
        defence=DefenceSpec(),
    )


PRESETS: dict[str, Callable[[], TaskSpec]] = {
    "digits": digits,
    "mnist": mnist,
    "mnist-bad-clients": mnist_bad_clients,
    "mnist-paper": mnist_paper,
    "mnist-paper-heuristic": mnist_paper_heuristic,
    "emnist": emnist,
    "emnist-small": emnist_small,
    "cifar10": cifar10,
    "cifar10-paper": cifar10_paper,
}
