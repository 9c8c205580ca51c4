"""Which updates count in a settlement, and how many a round needs."""

from collections.abc import Collection, Mapping

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.task_spec import AuditMode, TaskSpec

from ...domain import Round, RoundInvitation, Update

# A mean of fewer updates would show a single one.
_LEAST_UPDATES = 2


def quorum(
    spec: TaskSpec,
    round_: Round,
    invitations: Mapping[str, RoundInvitation],
    updates: Mapping[str, Update],
    accepted: Collection[str],
) -> int:
    """How many accepted updates a round needs.

    In a task with a defence a client whose update was rejected or voided does not count among those that are needed, as
    if it had not been invited: one hostile client must not end a small task. At least two updates are needed.
    """
    if spec.defence is None:
        return round_.min_updates
    invited = sum(invitation.standing is Standing.INVITED for invitation in invitations.values())
    refused = len(updates) - len(accepted)
    return min(round_.min_updates, max(_LEAST_UPDATES, invited - refused))


def is_accepted(spec: TaskSpec, verdict: NoiseVerdict | None) -> bool:
    """Whether an update with this verdict counts: only a task that rejects leaves out those with wrong noise."""
    wrong_noise = verdict in (NoiseVerdict.TOO_LITTLE_NOISE, NoiseVerdict.TOO_MUCH_NOISE)
    return not (wrong_noise and spec.privacy.audit is AuditMode.REJECT)
