"""What a reader has to know before believing a number of the report."""

from collections import Counter
from collections.abc import Iterable

from ..analysis.conditions import conditions, failures, finished
from ..analysis.summary import is_heuristic
from ..results.tables import Tables


def remarks_on(tables: Tables, *, is_full: bool, reproducible: bool) -> tuple[str, ...]:
    """The remarks that these results need."""
    return (
        *_on_trust(tables, is_full),
        *_on_measures(),
        *_on_privacy(tables, reproducible),
        *_on_selection(tables),
        *_on_verdicts(),
    )


def _on_trust(tables: Tables, is_full: bool) -> Iterable[str]:
    if not is_full:
        yield (
            "These runs are smaller than the paper's. With fewer records per client the same guarantee needs more "
            "noise, and with fewer rounds models stop earlier: what is seen here need not hold at full scale."
        )
    if failures(tables):
        yield "Runs that did not finish are in no mean and in no verdict; they are listed, and their seeds missing."
    seeds = Counter((cell.dataset, cell.partition, cell.method) for cell in finished(tables).cells)
    if seeds and max(seeds.values()) == 1:
        yield "There is one seed: nothing is known about chance, and nothing is decided but what holds by construction."


def _on_measures() -> Iterable[str]:
    yield (
        "Accuracy is that of the last round on one half of the test records. Nothing is decided by this half, neither "
        "when to stop nor which settings to use; hyper-parameters were chosen on records of the training data."
    )
    yield (
        "The server cost is a cost in the paper's model: a bound on the loss, which supposes strong convexity and "
        "learning rates that nobody uses, plus discounted money. It is computed, not measured, and says nothing about "
        "the accuracy that was reached. Without noise there is no such cost."
    )
    yield (
        "What privacy is worth to clients is drawn at random, not asked of anybody; rewards have no currency, and only "
        "their ratios mean something."
    )


def _on_privacy(tables: Tables, reproducible: bool) -> Iterable[str]:
    yield (
        "ε is that of the worst client, for one of its records, after everything it released, its label histogram "
        "included. Methods without noise guarantee nothing."
    )
    if is_heuristic(tables):
        yield (
            "The noise of these runs is the paper's, as printed: a heuristic without any privacy guarantee. Each ε "
            "follows from what the mechanism really proves, not from the declared budgets, and is vacuous."
        )
    if reproducible:
        yield (
            "The noise of these runs was drawn from their seeds, so that they can be repeated to the bit: it is of the "
            "right size, but protects nothing. Each ε is that of the same run with fresh noise."
        )


def _on_selection(tables: Tables) -> Iterable[str]:
    partitions = {condition.partition for condition in conditions(tables)}
    if "iid" in partitions:
        yield (
            "Under IID data the label distances of clients are sampling noise. A threshold that lies above this noise "
            "keeps everybody, and QI-DPFL is FedAvg-DP; one that lies below leaves clients out by chance."
        )
    if any(name.startswith("dirichlet") for name in partitions):
        yield (
            "Where a data set is divided among the clients, all of them together have exactly its labels. Leaving some "
            "out moves the rest away from these, and takes records away. Selection may beat as many clients chosen "
            "blindly; there is no reason why it should beat everybody."
        )
    if "quality-mix" in partitions:
        yield (
            "In the quality mix the labels of all clients together are skewed by those that hold two labels only. This "
            "is the case that selection is meant for; it is not in the paper."
        )


def _on_verdicts() -> Iterable[str]:
    yield (
        "Three of the paper's claims follow from definitions and are no evidence: QI-DPFL's reward is the one with the "
        "least cost, Max is the largest reward, and discounting alone makes rewards grow."
    )
    yield (
        "Methods are compared seed by seed: same clients, records and start. Intervals are Student's with 95 %, not "
        "corrected for the number of comparisons: about one in twenty misses the truth by chance."
    )
