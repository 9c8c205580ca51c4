"""The set of clients whose pooled labels are nearest to a reference: exact for few clients, else a local optimum."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .arguments import Mask, Vector

Indices = npt.NDArray[np.intp]

# Up to here every subset is tried. With more clients that is too slow (2^16 subsets), and a descent is used.
EXACT_UP_TO = 15
# Exchanging one member for one other client needs N² pairs. With more clients only single steps are tried.
_EXCHANGE_UP_TO = 1000
# A smaller improvement is rounding.
_IMPROVEMENT = 1e-12


def nearest_union(counts: Vector, reference: Vector, min_clients: int) -> Mask:
    """Return the best set of at least `min_clients` rows; all rows if there are no more than that.

    Ties: the larger set, then the one with the earlier clients. The arguments are not checked: each row must have a
    positive sum, and the reference must add up to 1.

    >>> counts = np.array([[10.0, 0.0], [0.0, 10.0], [8.0, 2.0]])
    >>> nearest_union(counts, np.array([0.5, 0.5]), 2).tolist()
    [True, True, False]
    """
    if counts.shape[0] <= min_clients:
        return np.ones(counts.shape[0], dtype=np.bool_)
    if counts.shape[0] <= EXACT_UP_TO:
        return _best_of_all(counts, reference, min_clients)
    return _best_by_descent(counts, reference, min_clients)


def union_distance(pooled: Vector, reference: Vector) -> Vector:
    """Return the L1 distance to the reference of each row of pooled counts.

    >>> union_distance(np.array([[10.0, 0.0], [5.0, 5.0]]), np.array([0.5, 0.5])).tolist()
    [1.0, 0.0]
    """
    sizes = pooled.sum(axis=-1, keepdims=True)
    distances: Vector = np.abs(pooled / sizes - reference).sum(axis=-1)
    return distances


def _best_of_all(counts: Vector, reference: Vector, min_clients: int) -> Mask:
    clients = counts.shape[0]
    codes = np.arange(1, 2**clients)
    # The first client is the highest bit, so that of equal sets the larger code has the earlier clients.
    members = (codes[:, None] >> np.arange(clients - 1, -1, -1)) & 1
    members = members[members.sum(axis=1) >= min_clients]
    distances = union_distance(members @ counts, reference)
    near = members[distances <= distances.min() + _IMPROVEMENT]
    largest = near[near.sum(axis=1) == near.sum(axis=1).max()]
    best: Mask = largest[-1].astype(np.bool_)
    return best


def _best_by_descent(counts: Vector, reference: Vector, min_clients: int) -> Mask:
    """Return the better of two descents: from all clients, and from the clients with the smallest distances."""
    all_clients = np.ones(counts.shape[0], dtype=np.bool_)
    nearest = np.zeros(counts.shape[0], dtype=np.bool_)
    nearest[np.argsort(union_distance(counts, reference), kind="stable")[:min_clients]] = True
    ends = [_descend(start, counts, reference, min_clients) for start in (all_clients, nearest)]
    distances = [float(union_distance(counts[end].sum(axis=0), reference)) for end in ends]
    return ends[1] if distances[1] < distances[0] - _IMPROVEMENT else ends[0]


def _descend(chosen: Mask, counts: Vector, reference: Vector, min_clients: int) -> Mask:
    """Add, drop or exchange the client that improves the distance most, until no step improves it."""
    chosen = chosen.copy()
    pooled = counts[chosen].sum(axis=0)
    current = float(union_distance(pooled, reference))
    while True:
        best, move = current - _IMPROVEMENT, np.array([], dtype=np.intp)
        for moves, changes in _moves(chosen, counts, min_clients):
            distances = union_distance(pooled + changes, reference)
            if distances.size and distances.min() < best:
                best, move = float(distances.min()), moves[int(np.argmin(distances))]
        if not move.size:
            return chosen
        chosen[move] = ~chosen[move]
        pooled, current = counts[chosen].sum(axis=0), best


def _moves(chosen: Mask, counts: Vector, min_clients: int) -> Iterator[tuple[Indices, Vector]]:
    """Yield all single steps from a set, as (clients to flip, change of the pooled counts), in batches."""
    inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    yield outside[:, None], counts[outside]
    if inside.size > min_clients:
        yield inside[:, None], -counts[inside]
    if counts.shape[0] <= _EXCHANGE_UP_TO:
        for member in inside:
            pairs = np.stack([np.full(outside.size, member), outside], axis=1)
            yield pairs, counts[outside] - counts[member]
