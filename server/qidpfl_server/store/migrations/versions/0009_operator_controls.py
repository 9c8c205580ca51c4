"""What operators change in a running task: a pause, deadlines of later rounds, and revoked enrolment codes."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("paused_at", sa.BigInteger(), nullable=True))
    op.add_column("tasks", sa.Column("declare_s", sa.Double(), nullable=True))
    op.add_column("tasks", sa.Column("deliver_s", sa.Double(), nullable=True))
    op.add_column("enrolment_codes", sa.Column("revoked_at", sa.BigInteger(), nullable=True))
