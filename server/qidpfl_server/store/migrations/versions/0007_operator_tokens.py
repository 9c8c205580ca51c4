"""Tokens of operators with roles, next tokens of clients, and certificates that clients enrolled with."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "client_credentials",
        sa.Column("client_id", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("pending_hash", sa.String(length=64), nullable=True),
        sa.Column("certificate", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["client_id"], ["clients.client_id"], name=op.f("fk_client_credentials_client_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_client_credentials_task_id")),
        sa.PrimaryKeyConstraint("client_id", name=op.f("pk_client_credentials")),
        sa.UniqueConstraint("pending_hash", name=op.f("uq_client_credentials_pending_hash")),
        sa.UniqueConstraint("task_id", "certificate", name=op.f("uq_client_credentials_task_id_certificate")),
    )
    op.create_table(
        "operator_tokens",
        sa.Column("token_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=True),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("token_used", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("rotated_at", sa.BigInteger(), nullable=True),
        sa.Column("previous_hash", sa.String(length=64), nullable=True),
        sa.Column("previous_until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_operator_tokens_task_id")),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_operator_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_operator_tokens_token_hash")),
        sa.UniqueConstraint("previous_hash", name=op.f("uq_operator_tokens_previous_hash")),
    )
