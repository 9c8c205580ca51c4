"""The first version of all tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pulse",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pulse")),
    )
    op.create_table(
        "tasks",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("preset", sa.String(length=200), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("last_enrolment_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("name", name=op.f("uq_tasks_name")),
    )
    op.create_table(
        "clients",
        sa.Column("client_id", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=True),
        sa.Column("enrolled_at", sa.BigInteger(), nullable=False),
        sa.Column("label_counts", sa.Text(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("privacy_value", sa.Double(), nullable=True),
        sa.Column("histogram_rho", sa.Double(), nullable=True),
        sa.Column("rho_cap", sa.Double(), nullable=True),
        sa.Column("lifetime_rho", sa.Double(), nullable=True),
        sa.Column("label_distance", sa.Double(), nullable=True),
        sa.Column("filled_up", sa.Boolean(), nullable=False),
        sa.Column("misses", sa.Integer(), nullable=False),
        sa.Column("set_aside", sa.Boolean(), nullable=False),
        sa.Column("coming_back", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_clients_task_id")),
        sa.PrimaryKeyConstraint("client_id", name=op.f("pk_clients")),
        sa.UniqueConstraint("task_id", "client_id", name=op.f("uq_clients_task_id_client_id")),
        sa.UniqueConstraint("task_id", "key_hash", name=op.f("uq_clients_task_id_key_hash")),
        sa.UniqueConstraint("task_id", "ordinal", name=op.f("uq_clients_task_id_ordinal")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_clients_token_hash")),
    )
    op.create_table(
        "enrolment_codes",
        sa.Column("code_hash", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("single_use", sa.Boolean(), nullable=False),
        sa.Column("used_by", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_enrolment_codes_task_id")),
        sa.PrimaryKeyConstraint("code_hash", name=op.f("pk_enrolment_codes")),
    )
    op.create_index(op.f("ix_enrolment_codes_task_id"), "enrolment_codes", ["task_id"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_events_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_task_id"), "events", ["task_id"], unique=False)
    op.create_table(
        "models",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("momentum_digest", sa.String(length=64), nullable=True),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_models_task_id")),
        sa.PrimaryKeyConstraint("task_id", "version", name=op.f("pk_models")),
    )
    op.create_table(
        "rounds",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reward_micro", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("min_updates", sa.Integer(), nullable=False),
        sa.Column("base_version", sa.Integer(), nullable=False),
        sa.Column("declare_by", sa.BigInteger(), nullable=False),
        sa.Column("deliver_by", sa.BigInteger(), nullable=False),
        sa.Column("kept_micro", sa.BigInteger(), nullable=True),
        sa.Column("declared_total", sa.Double(), nullable=True),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("reward_micro >= 0", name=op.f("ck_rounds_reward")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_rounds_task_id")),
        sa.PrimaryKeyConstraint("task_id", "round_number", name=op.f("pk_rounds")),
    )
    op.create_table(
        "budgets",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("rho", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id", "client_id"],
            ["clients.task_id", "clients.client_id"],
            name=op.f("fk_budgets_task_id_client_id"),
        ),
        sa.ForeignKeyConstraint(
            ["task_id", "round_number"],
            ["rounds.task_id", "rounds.round_number"],
            name=op.f("fk_budgets_task_id_round_number"),
        ),
        sa.PrimaryKeyConstraint("task_id", "round_number", "client_id", name=op.f("pk_budgets")),
    )
    op.create_table(
        "invitations",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=64), nullable=False),
        sa.Column("standing", sa.String(length=16), nullable=False),
        sa.Column("expected_rho", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id", "client_id"],
            ["clients.task_id", "clients.client_id"],
            name=op.f("fk_invitations_task_id_client_id"),
        ),
        sa.ForeignKeyConstraint(
            ["task_id", "round_number"],
            ["rounds.task_id", "rounds.round_number"],
            name=op.f("fk_invitations_task_id_round_number"),
        ),
        sa.PrimaryKeyConstraint("task_id", "round_number", "client_id", name=op.f("pk_invitations")),
    )
    op.create_table(
        "payments",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=64), nullable=False),
        sa.Column("amount_micro", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id", "client_id"],
            ["clients.task_id", "clients.client_id"],
            name=op.f("fk_payments_task_id_client_id"),
        ),
        sa.ForeignKeyConstraint(
            ["task_id", "round_number"],
            ["rounds.task_id", "rounds.round_number"],
            name=op.f("fk_payments_task_id_round_number"),
        ),
        sa.PrimaryKeyConstraint("task_id", "round_number", "client_id", name=op.f("pk_payments")),
    )
    op.create_table(
        "updates",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("byte_length", sa.BigInteger(), nullable=False),
        sa.Column("squared_norm", sa.Double(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=True),
        sa.Column("accepted", sa.Boolean(), nullable=True),
        sa.ForeignKeyConstraint(
            ["task_id", "client_id"],
            ["clients.task_id", "clients.client_id"],
            name=op.f("fk_updates_task_id_client_id"),
        ),
        sa.ForeignKeyConstraint(
            ["task_id", "round_number"],
            ["rounds.task_id", "rounds.round_number"],
            name=op.f("fk_updates_task_id_round_number"),
        ),
        sa.PrimaryKeyConstraint("task_id", "round_number", "client_id", name=op.f("pk_updates")),
    )
    op.create_index("ix_updates_digest", "updates", ["digest"], unique=False)
