"""Bounds on single clients: largest bids, exclusions, revocations, void updates, alignment scores, and escrow."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Revoked clients of earlier versions have only left.
    op.add_column("clients", sa.Column("revoked_at", sa.BigInteger(), nullable=True))
    op.add_column("clients", sa.Column("exclusions", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("clients", sa.Column("excluded_until", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("invitations", sa.Column("rho_limit", sa.Double(), nullable=True))
    op.add_column("budgets", sa.Column("attempt", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("updates", sa.Column("alignment", sa.Double(), nullable=True))
    op.add_column("updates", sa.Column("voided_at", sa.BigInteger(), nullable=True))
    op.add_column("payments", sa.Column("escrow_micro", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "escrow_settlements",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("client_id", sa.String(length=64), nullable=False),
        sa.Column("amount_micro", sa.BigInteger(), nullable=False),
        sa.Column("forfeited", sa.Boolean(), nullable=False),
        sa.Column("settled_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id", "client_id"],
            ["clients.task_id", "clients.client_id"],
            name=op.f("fk_escrow_settlements_task_id_client_id"),
        ),
        sa.PrimaryKeyConstraint("task_id", "client_id", name=op.f("pk_escrow_settlements")),
    )
