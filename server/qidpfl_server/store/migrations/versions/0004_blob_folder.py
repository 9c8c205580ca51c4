"""The identity of the blob folder, with which coordinators check that they share it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "blob_folder",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("folder_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blob_folder")),
    )
