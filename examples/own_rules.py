"""A custom reward policy and a custom selection rule in one file, which only the operator can name:

    qidpfl-server serve --rules examples/own_rules.py --preset digits --overrides '{
        "game": {"policy": "own", "own_rules": "own_rules"},
        "selection": {"rule": "own", "own_rules": "own_rules"}}'

A file may also define only one of the two functions. They must depend on their question only, so that
`qidpfl-server audit --rules examples/own_rules.py` gets the same answers again.
"""

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.custom_rules import RewardQuestion, SelectionQuestion

NEAR_ENOUGH = 1.0


def reward(question: RewardQuestion) -> float:
    """Pay the paper's optimal reward at first, and less when the model becomes more accurate."""
    reached = [accuracy for accuracy in question.accuracies if accuracy is not None]
    return (1 - max(reached, default=0.0)) * question.optimal_reward()


def select(question: SelectionQuestion) -> npt.NDArray[np.bool_]:
    """Keep the larger half of the clients whose labels are near enough, but at least `min_clients`."""
    near = question.label_distances <= NEAR_ENOUGH
    wanted = max(question.min_clients, int(near.sum()) // 2)
    largest_first = np.argsort(-np.where(near, question.sizes, 0.0), kind="stable")
    kept = np.zeros(question.clients, dtype=np.bool_)
    kept[largest_first[:wanted]] = True
    return kept & near
