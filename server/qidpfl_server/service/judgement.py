"""A round as it was read to be settled, and what the noise audit says of its updates."""

from dataclasses import dataclass

from qidpfl_shared.core.noise_audit import NoiseAudit, NoiseVerdict, alpha_per_upload
from qidpfl_shared.protocol.task_spec import AuditMode

from ..domain import Budget, Client, Model, Round, RoundInvitation, Task, Update


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A round that is ready to settle, as it was read."""

    task: Task
    round_: Round
    base: Model
    clients: dict[str, Client]
    invitations: dict[str, RoundInvitation]
    budgets: dict[str, Budget]
    updates: dict[str, Update]


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What the audit says of every update, and which of them count."""

    verdicts: dict[str, NoiseVerdict | None]
    accepted: tuple[str, ...]


def audit_updates(snapshot: Snapshot) -> AuditResult:
    """The noise audit of every update; only rejection keeps one out of the average."""
    spec = snapshot.task.spec
    mode = spec.privacy.audit if spec.privacy.noise else AuditMode.OFF
    mechanism = spec.privacy.mechanism.build()
    verdicts: dict[str, NoiseVerdict | None] = {}
    accepted = []
    alpha = alpha_per_upload(
        alpha=spec.privacy.audit_alpha, clients=max(1, len(snapshot.clients)), rounds=spec.game.horizon
    )
    for client_id in sorted(snapshot.updates, key=lambda known: snapshot.clients[known].ordinal):
        verdict = None
        if mode is not AuditMode.OFF:
            audit = NoiseAudit.of_upload(
                mechanism=mechanism,
                rho=snapshot.budgets[client_id].rho,
                size=snapshot.clients[client_id].size or 1,
                dimension=spec.dimension,
                alpha=alpha,
            )
            verdict = audit.verdict(squared_norm=snapshot.updates[client_id].squared_norm)
        verdicts[client_id] = verdict
        accused = verdict in (NoiseVerdict.TOO_LITTLE_NOISE, NoiseVerdict.TOO_MUCH_NOISE)
        if not (mode is AuditMode.REJECT and accused):
            accepted.append(client_id)
    return AuditResult(verdicts=verdicts, accepted=tuple(accepted))
