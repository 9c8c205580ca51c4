"""The set of clients whose pooled labels are nearest to a reference: exact for few, a local optimum for many."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .arguments import Mask, Vector

Indices = npt.NDArray[np.intp]

# Up to here every subset is tried; beyond, their number (2^16 and more) makes that slow, and a descent is used.
EXACT_UP_TO = 15
# Exchanging one member for one outsider looks at N² pairs; beyond this many clients only single steps are tried.
_EXCHANGE_UP_TO = 1000
# Improvements below this are rounding.
_IMPROVEMENT = 1e-12


def nearest_union(counts: Vector, reference: Vector, min_clients: int) -> Mask:
    """The best set of at least `min_clients` rows; everybody when there are no more than that.

    Of sets at the same distance the larger one is taken, then the one with the earlier clients.
    """
    if counts.shape[0] <= min_clients:
        return np.ones(counts.shape[0], dtype=np.bool_)
    if counts.shape[0] <= EXACT_UP_TO:
        return _best_of_all(counts, reference, min_clients)
    return _best_by_descent(counts, reference, min_clients)


def union_distance(pooled: Vector, reference: Vector) -> Vector:
    """The L1 distance to the reference of each row of pooled counts."""
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
    """The better of two descents: from everybody, and from the clients that are nearest one by one."""
    everybody = np.ones(counts.shape[0], dtype=np.bool_)
    nearest = np.zeros(counts.shape[0], dtype=np.bool_)
    nearest[np.argsort(union_distance(counts, reference), kind="stable")[:min_clients]] = True
    ends = [_descend(start, counts, reference, min_clients) for start in (everybody, nearest)]
    distances = [float(union_distance(counts[end].sum(axis=0), reference)) for end in ends]
    return ends[1] if distances[1] < distances[0] - _IMPROVEMENT else ends[0]


def _descend(chosen: Mask, counts: Vector, reference: Vector, min_clients: int) -> Mask:
    """Add, drop or exchange one client, whichever helps most, until nothing helps."""
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
    """All single steps from a set, as (clients to flip, change of the pooled counts), a few at a time."""
    inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    yield outside[:, None], counts[outside]
    if inside.size > min_clients:
        yield inside[:, None], -counts[inside]
    if counts.shape[0] <= _EXCHANGE_UP_TO:
        for member in inside:
            pairs = np.stack([np.full(outside.size, member), outside], axis=1)
            yield pairs, counts[outside] - counts[member]
