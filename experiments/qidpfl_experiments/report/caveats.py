"""The remarks of the report: what limits the meaning of its numbers."""

from collections import Counter
from collections.abc import Iterable

from ..analysis.conditions import conditions, failures, finished, for_condition
from ..analysis.summary import heuristic_methods
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
        "nothing about the accuracy. Methods without noise have no such cost, and that of QI-auction+ leaves out the "
        "labels of its average."
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
    heuristic = ", ".join(method.title for method in heuristic_methods(tables))
    if heuristic:
        yield (
            f"{heuristic}: the paper's noise as printed is a heuristic without a privacy guarantee. Each ε is computed "
            "from what the mechanism proves, not from the declared budgets, and is vacuous."
        )
    yield (
        "The ε for QI-DPFL's money and the money for its ε are computed, not run: budgets are proportional to money as "
        "long as no cap binds. They say nothing about the accuracy."
    )
    if reproducible:
        yield (
            "The noise of these runs was drawn from their seeds, so that a repeat gives identical models. It has the "
            "right size but protects nothing. Each ε is that of the same run with fresh noise. If the folder has "
            "mistakes.csv, all methods have the same standard noise: equal clients and budgets give equal models."
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
    yield from _on_union(tables)
    if "quality-mix" in partitions:
        yield (
            "In the quality mix, clients that hold only two labels skew the labels of all clients together. Selection "
            "is meant for this case. It is not in the paper."
        )


def _on_union(tables: Tables) -> Iterable[str]:
    """Selection by pooled labels chooses among the distances that chance gives to small sets."""
    for condition in conditions(tables):
        rows = [row for row in for_condition(finished(tables), condition).cells if row.method == "qi-dpfl-union"]
        kept, of = (sum(values) for values in ([row.selected for row in rows], [row.clients for row in rows]))
        if rows and condition.is_iid and 2 * kept < of:
            yield (
                f"On {condition.title}, selection by pooled labels keeps {kept / len(rows):.1f} of "
                f"{of / len(rows):.0f} clients: it degenerates. All sets of clients have nearly the same labels there, "
                "and the rule keeps the small set whose noise happens to cancel. It saves no bad clients, and the few "
                "that are left sell more privacy each. The rule needs clients that differ by more than their noise."
            )


def _on_verdicts() -> Iterable[str]:
    yield (
        "Three of the paper's claims follow from definitions and are no evidence: QI-DPFL pays the reward with the "
        "lowest cost, Max pays the largest reward, and the discount alone makes rewards grow."
    )
    yield (
        "Methods are compared seed by seed, with the same clients, records and initial model. Intervals are Student's "
        "95 % intervals without a correction for the number of comparisons: about one in twenty misses the true value. "
        "Those of final accuracies include the error of the test set if the folder has mistakes.csv."
    )
