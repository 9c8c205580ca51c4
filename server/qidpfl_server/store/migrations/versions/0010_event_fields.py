"""The values of an event as JSON, beside its text. Events of earlier versions have none."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("fields", sa.Text(), nullable=True))
