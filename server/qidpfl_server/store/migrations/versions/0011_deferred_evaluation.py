"""Rounds that are evaluated after their settlement, and when that was done."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_AWAITS_EVALUATION = sa.text("evaluation_deferred IS true AND evaluated_at IS NULL")
_AWAITS_EVALUATION_SQLITE = sa.text("evaluation_deferred IS 1 AND evaluated_at IS NULL")


def upgrade() -> None:
    op.add_column("rounds", sa.Column("evaluation_deferred", sa.Boolean(), nullable=True))
    op.add_column("rounds", sa.Column("evaluated_at", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_rounds_awaiting_evaluation",
        "rounds",
        ["task_id"],
        sqlite_where=_AWAITS_EVALUATION_SQLITE,
        postgresql_where=_AWAITS_EVALUATION,
    )
