"""The remarks of the report: what limits the meaning of its numbers."""

from collections import Counter
from collections.abc import Iterable

from ..analysis.conditions import conditions, failures, finished
from ..analysis.summary import is_heuristic
from ..results.tables import Tables


def remarks_on(tables: Tables, *, is_full: bool, reproducible: bool) -> tuple[str, ...]:
    """The remarks that apply to these results."""
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
            "noise, and with fewer rounds models learn less. The results may differ at full scale."
        )
    if failures(tables):
        yield "Means and verdicts leave out the runs that did not finish. The report lists these runs."
    seeds = Counter((cell.dataset, cell.partition, cell.method) for cell in finished(tables).cells)
    if seeds and max(seeds.values()) == 1:
        yield "There is one seed, so chance cannot be estimated. Only claims that hold by construction are decided."


def _on_measures() -> Iterable[str]:
    yield (
        "Accuracy is measured after the last round on one half of the test records. This half decides neither when to "
        "stop nor which settings to use. Hyper-parameters were chosen on records of the training data."
    )
    yield (
        "The server cost is the cost of the paper's model: discounted rewards plus a bound on the loss, which assumes "
        "strong convexity and learning rates that are not used in practice. It is computed, not measured, and says "
        "nothing about the accuracy. Methods without noise have no such cost."
    )
    yield (
        "The privacy values of the clients are random numbers, not answers of real people. Rewards have no currency; "
        "only their ratios have a meaning."
    )


def _on_privacy(tables: Tables, reproducible: bool) -> Iterable[str]:
    yield (
        "ε is that of the worst client, for one of its records, after all its releases including the label histogram. "
        "Methods without noise guarantee nothing."
    )
    if is_heuristic(tables):
        yield (
            "These runs use the paper's noise as printed, which is a heuristic without a privacy guarantee. Each ε is "
            "computed from what the mechanism proves, not from the declared budgets, and is vacuous."
        )
    if reproducible:
        yield (
            "The noise of these runs was drawn from their seeds, so that a repeat gives identical models. It has the "
            "right size but protects nothing. Each ε is that of the same run with fresh noise."
        )


def _on_selection(tables: Tables) -> Iterable[str]:
    partitions = {condition.partition for condition in conditions(tables)}
    if "iid" in partitions:
        yield (
            "With IID data the label distances of clients are sampling noise. A threshold above this noise keeps all "
            "clients, and QI-DPFL is then FedAvg-DP. A lower threshold leaves out clients by chance."
        )
    if any(name.startswith("dirichlet") for name in partitions):
        yield (
            "All clients together hold the whole data set and so have exactly its labels. Leaving out clients moves "
            "the rest away from these labels and removes records. Selection may be better than equally many random "
            "clients, but there is no reason why it should be better than all clients."
        )
    if "quality-mix" in partitions:
        yield (
            "In the quality mix, clients that hold only two labels skew the labels of all clients together. Selection "
            "is meant for this case. It is not in the paper."
        )


def _on_verdicts() -> Iterable[str]:
    yield (
        "Three of the paper's claims follow from definitions and are no evidence: QI-DPFL pays the reward with the "
        "lowest cost, Max pays the largest reward, and the discount alone makes rewards grow."
    )
    yield (
        "Methods are compared seed by seed, with the same clients, records and initial model. Intervals are Student's "
        "95 % intervals without a correction for the number of comparisons: about one in twenty misses the true value."
    )
