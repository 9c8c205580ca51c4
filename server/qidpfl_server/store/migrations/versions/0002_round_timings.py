"""When rounds were opened, and how long their settlement and evaluation took."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("opened_at", sa.BigInteger(), nullable=True))
    op.add_column("rounds", sa.Column("settlement_s", sa.Double(), nullable=True))
    op.add_column("rounds", sa.Column("evaluation_s", sa.Double(), nullable=True))
