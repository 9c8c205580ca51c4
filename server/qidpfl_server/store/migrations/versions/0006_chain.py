"""The hash chain of each task, its signed head, the public keys of the coordinator, and tombstones of deleted tasks.

`store.adoption` then starts the chains of tasks that are older than these tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "chain",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("content", sa.String(length=64), nullable=False),
        sa.Column("head", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "sequence", name=op.f("pk_chain")),
    )
    op.create_index("ix_chain_task_id_subject", "chain", ["task_id", "subject"])
    op.create_table(
        "chain_heads",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("head", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16)),
        sa.Column("signature", sa.String(length=88)),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_chain_heads")),
    )
    op.create_table(
        "signing_keys",
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("public_key", sa.String(length=44), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("endorsed_by", sa.String(length=16)),
        sa.Column("endorsement", sa.String(length=88)),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_signing_keys")),
        sa.UniqueConstraint("key_id", name=op.f("uq_signing_keys_key_id")),
    )
    op.create_table(
        "tombstones",
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("spec_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("clients", sa.Integer(), nullable=False),
        sa.Column("settled_rounds", sa.Integer(), nullable=False),
        sa.Column("paid_micro", sa.BigInteger(), nullable=False),
        sa.Column("final_sequence", sa.Integer(), nullable=False),
        sa.Column("final_head", sa.String(length=64), nullable=False),
        sa.Column("deleted_by", sa.String(length=200), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(length=16)),
        sa.Column("signature", sa.String(length=88)),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_tombstones")),
    )
