"""Which members of a fleet one process plays: all of them, or a range of ordinals.

Several processes, such as the tasks of a Slurm array, play disjoint ranges of one fleet. A member has the same privacy
value, behaviour and shard in a range as in the whole fleet.
"""

import re

from ..errors import Misconfigured

_MOST = 100_000


def fleet_range(clients: int | None, ordinals: str | None, *, has_shares: bool) -> tuple[int, range]:
    """The size of the whole fleet, and the ordinals of the members that this process plays.

    `ordinals` is `A-B`, both included, or one ordinal. Without `clients` the whole fleet ends with this range; then no
    member may misbehave (`has_shares`), because the shares of behaviours count the whole fleet.

    Raises `Misconfigured` if the two options do not name at least one member.
    """
    if ordinals is None:
        if clients is None:
            raise Misconfigured("give --clients, the number of members, or --ordinals A-B, the range of them")
        return clients, range(clients)
    found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", ordinals.strip(), re.ASCII)
    if found is None:
        raise Misconfigured(f"--ordinals is a range such as 0-24, or one ordinal such as 7, not {ordinals!r}")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if last < first:
        raise Misconfigured(f"--ordinals {ordinals} ends before it begins: the first ordinal is the smaller one")
    most = _MOST if clients is None else clients
    if last >= most:
        raise Misconfigured(f"there is no ordinal {last} among {most} clients: they are numbered from 0 to {most - 1}")
    if clients is None and has_shares:
        raise Misconfigured("with --ordinals, shares of behaviours need --clients: the size of the whole fleet")
    return last + 1 if clients is None else clients, range(first, last + 1)
