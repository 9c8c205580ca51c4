"""The tables. Times are microseconds since 1970, money is in micro-units, secrets are stored as hashes."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# One row that counts commits: other processes read it to notice changes.
pulse = Table("pulse", metadata, Column("id", Integer, primary_key=True), Column("changes", BigInteger, nullable=False))

# One row with the identity of the blob folder that all coordinators of this store share.
blob_folder = Table(
    "blob_folder",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("folder_id", String(64), nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("preset", String(200)),
    Column("spec", Text, nullable=False),
    Column("spec_digest", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("opened_at", BigInteger, nullable=False),
    Column("last_enrolment_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    # What an operator has changed: no new round opens, and deadlines that replace those of the spec.
    Column("paused_at", BigInteger),
    Column("declare_s", Double),
    Column("deliver_s", Double),
)

enrolment_codes = Table(
    "enrolment_codes",
    metadata,
    Column("code_hash", String(64), primary_key=True),
    Column("task_id", String(64), ForeignKey("tasks.task_id"), nullable=False, index=True),
    Column("single_use", Boolean, nullable=False),
    Column("used_by", String(64)),
    Column("revoked_at", BigInteger),
)

clients = Table(
    "clients",
    metadata,
    Column("client_id", String(64), primary_key=True),
    Column("task_id", String(64), ForeignKey("tasks.task_id"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("key_hash", String(64), nullable=False),
    Column("token_hash", String(64), unique=True),
    Column("token_used", Boolean, nullable=False, default=False),
    Column("enrolled_at", BigInteger, nullable=False),
    Column("label_counts", Text),
    Column("size", BigInteger),
    Column("privacy_value", Double),
    Column("histogram_rho", Double),
    Column("rho_cap", Double),
    Column("lifetime_rho", Double),
    Column("label_distance", Double),
    Column("filled_up", Boolean, nullable=False, default=False),
    Column("misses", Integer, nullable=False, default=0),
    Column("set_aside", Boolean, nullable=False, default=False),
    Column("coming_back", Boolean, nullable=False, default=False),
    Column("revoked_at", BigInteger),
    # How often the client was set aside, and the first round that it may play again.
    Column("exclusions", Integer, nullable=False, default=0, server_default="0"),
    Column("excluded_until", Integer, nullable=False, default=0, server_default="0"),
    UniqueConstraint("task_id", "ordinal"),
    UniqueConstraint("task_id", "key_hash"),
    UniqueConstraint("task_id", "client_id"),
)

# What a client has beside its token: the next token until its first use, and the certificate that it enrolled with.
client_credentials = Table(
    "client_credentials",
    metadata,
    Column("client_id", String(64), ForeignKey("clients.client_id"), primary_key=True),
    Column("task_id", String(64), ForeignKey("tasks.task_id"), nullable=False),
    Column("pending_hash", String(64), unique=True),
    Column("certificate", String(64)),
    UniqueConstraint("task_id", "certificate"),
)

operator_tokens = Table(
    "operator_tokens",
    metadata,
    Column("token_id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("task_id", String(64), ForeignKey("tasks.task_id")),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("token_used", Boolean, nullable=False, default=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("rotated_at", BigInteger),
    Column("previous_hash", String(64), unique=True),
    Column("previous_until", BigInteger),
)

models = Table(
    "models",
    metadata,
    Column("task_id", String(64), ForeignKey("tasks.task_id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("momentum_digest", String(64)),
    Column("published_at", BigInteger, nullable=False),
)

rounds = Table(
    "rounds",
    metadata,
    Column("task_id", String(64), ForeignKey("tasks.task_id"), primary_key=True),
    Column("round_number", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reward_micro", BigInteger, nullable=False),
    Column("total", Double, nullable=False),
    Column("min_updates", Integer, nullable=False),
    Column("base_version", Integer, nullable=False),
    Column("declare_by", BigInteger, nullable=False),
    Column("deliver_by", BigInteger, nullable=False),
    Column("kept_micro", BigInteger),
    Column("declared_total", Double),
    Column("accuracy", Double),
    Column("loss", Double),
    Column("settled_at", BigInteger),
    # Null in rounds that are older than these columns.
    Column("opened_at", BigInteger),
    Column("settlement_s", Double),
    Column("evaluation_s", Double),
    # True in a round whose model is evaluated after its settlement, else null; and when that was done.
    Column("evaluation_deferred", Boolean),
    Column("evaluated_at", BigInteger),
    # The sums of a settled round over its clients: a list of rounds need not read all payments and updates. Null in
    # rounds that are older than these columns.
    Column("paid_micro", BigInteger),
    Column("escrow_micro", BigInteger),
    Column("invited", Integer),
    Column("updates", Integer),
    CheckConstraint("reward_micro >= 0", name="reward"),
)
# The few rounds that wait for their evaluation.
_AWAITS_EVALUATION = and_(rounds.c.evaluation_deferred.is_(True), rounds.c.evaluated_at.is_(None))
Index(
    "ix_rounds_awaiting_evaluation",
    rounds.c.task_id,
    sqlite_where=_AWAITS_EVALUATION,
    postgresql_where=_AWAITS_EVALUATION,
)


def _of_round_and_client(name: str, *columns: Column) -> Table:  # type: ignore[type-arg]
    """A table with the key (round, client): one row per client in a round."""
    return Table(
        name,
        metadata,
        Column("task_id", String(64), primary_key=True),
        Column("round_number", Integer, primary_key=True),
        Column("client_id", String(64), primary_key=True),
        *columns,
        ForeignKeyConstraint(["task_id", "round_number"], ["rounds.task_id", "rounds.round_number"]),
        ForeignKeyConstraint(["task_id", "client_id"], ["clients.task_id", "clients.client_id"]),
    )


invitations = _of_round_and_client(
    "invitations",
    Column("standing", String(16), nullable=False),
    Column("expected_rho", Double, nullable=False),
    # Null: the task has no bound of its own for this client.
    Column("rho_limit", Double),
)

budgets = _of_round_and_client(
    "budgets",
    Column("state", String(16), nullable=False),
    Column("rho", Double, nullable=False),
    Column("reason", Text),
    Column("recorded_at", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False, default=1, server_default="1"),
)

updates = _of_round_and_client(
    "updates",
    Column("digest", String(64), nullable=False),
    Column("byte_length", BigInteger, nullable=False),
    Column("squared_norm", Double, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("verdict", String(32)),
    Column("accepted", Boolean),
    Column("alignment", Double),
    Column("voided_at", BigInteger),
)
Index("ix_updates_digest", updates.c.digest)

payments = _of_round_and_client(
    "payments",
    Column("amount_micro", BigInteger, nullable=False),
    Column("escrow_micro", BigInteger, nullable=False, default=0, server_default="0"),
)

# What becomes of the escrow of a client when its task ends.
escrow_settlements = Table(
    "escrow_settlements",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("client_id", String(64), primary_key=True),
    Column("amount_micro", BigInteger, nullable=False),
    Column("forfeited", Boolean, nullable=False),
    Column("settled_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["task_id", "client_id"], ["clients.task_id", "clients.client_id"]),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("task_id", String(64), ForeignKey("tasks.task_id"), nullable=False, index=True),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("round_number", Integer),
    Column("detail", Text),
    # A JSON object; null in events of earlier versions.
    Column("fields", Text),
)

# The chain of each task, and that of the store (task_id "store"): see qidpfl_shared.protocol.chain. There is no foreign
# key, because the chain of a task must not depend on the rows that it guards.
chain = Table(
    "chain",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("content", String(64), nullable=False),
    Column("head", String(64), nullable=False),
)
Index("ix_chain_task_id_subject", chain.c.task_id, chain.c.subject)

# One row per chain with its newest head, signed unless the store has no key yet.
chain_heads = Table(
    "chain_heads",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("sequence", Integer, nullable=False),
    Column("head", String(64), nullable=False),
    Column("key_id", String(16)),
    Column("signature", String(88)),
)

# Small models and updates by digest. `writes` counts how often the same bytes were written.
small_blobs = Table(
    "small_blobs",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("writes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

# Blobs of an object store that a sweep removes, or has removed in the last hours. See `repositories.removals`.
blob_removals = Table(
    "blob_removals",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("started_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
)

# The public keys of the coordinator, in the order of `position`. All but the first are endorsed by the one before.
signing_keys = Table(
    "signing_keys",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("key_id", String(16), nullable=False, unique=True),
    Column("public_key", String(44), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("endorsed_by", String(16)),
    Column("endorsement", String(88)),
)

# What is left of a deleted task.
tombstones = Table(
    "tombstones",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("spec_digest", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("clients", Integer, nullable=False),
    Column("settled_rounds", Integer, nullable=False),
    Column("paid_micro", BigInteger, nullable=False),
    Column("final_sequence", Integer, nullable=False),
    Column("final_head", String(64), nullable=False),
    Column("deleted_by", String(200), nullable=False),
    Column("deleted_at", BigInteger, nullable=False),
    Column("key_id", String(16)),
    Column("signature", String(88)),
)
