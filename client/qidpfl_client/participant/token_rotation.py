"""New tokens of a client: stored before they are used, so that a kill at any point locks no client out.

The journal keeps the current and the next token until the coordinator has accepted the next one. If it refuses the next
one, for example because a delayed duplicate of the request has replaced it, the current one is still valid.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from qidpfl_shared.failpoints import failpoint

from ..errors import NotFound, Refused, Unauthenticated
from ..journal.journal import Journal, Membership
from ..sdk.client import TaskApi


def rotate_token(api: TaskApi, journal: Journal) -> bool:
    """Replace the token of a client that has enrolled; whether the coordinator has accepted the new one.

    After an error the client goes on with the token that it has.
    """
    known = journal.membership(api.task_id)
    assert known is not None
    token = api.next_token()
    failpoint("client.token_received")
    journal.save_membership(replace(known, next_token=token))
    failpoint("client.token_stored")
    return settle_token(api, journal).token == token


def settle_token(api: TaskApi, journal: Journal) -> Membership:
    """Use the next token of the journal, if there is one, or drop it if the coordinator refuses it."""
    known = journal.membership(api.task_id)
    assert known is not None
    if known.next_token is not None:
        api.token = known.next_token
        try:
            api.selection()
        except Unauthenticated:
            token = known.token
        else:
            token = known.next_token
        failpoint("client.token_used")
        known = replace(known, token=token, next_token=None)
        journal.save_membership(known)
    api.token = known.token
    return known


@dataclass
class TokenRotation:
    """Replaces the token of a running client when it has been used for `every_s` seconds, and at the start."""

    every_s: float
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _due_at: float = field(default=-math.inf, init=False)

    def rotate_if_due(self, api: TaskApi, journal: Journal) -> None:
        """Raises `Unreachable` and `Unavailable`: the caller tries again later."""
        if self.clock() < self._due_at:
            return
        try:
            rotated = rotate_token(api, journal)
        except (NotFound, Refused) as error:
            self._due_at = math.inf
            self.report(f"the coordinator gives no new tokens ({error}); the client keeps the one that it has")
            return
        self._due_at = self.clock() + self.every_s
        self.report("the client has a new token" if rotated else "the client keeps its token")
