"""Small models and updates in the database, so that one commit makes them durable with their rows."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "small_blobs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("writes", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_small_blobs")),
    )
