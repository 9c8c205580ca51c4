"""The sums of a settled round over its clients. They are null in rounds that were settled before."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("paid_micro", sa.BigInteger(), nullable=True))
    op.add_column("rounds", sa.Column("escrow_micro", sa.BigInteger(), nullable=True))
    op.add_column("rounds", sa.Column("invited", sa.Integer(), nullable=True))
    op.add_column("rounds", sa.Column("updates", sa.Integer(), nullable=True))
