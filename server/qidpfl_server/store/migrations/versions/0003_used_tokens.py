"""Whether a client has used its token: a used token is never replaced by a repeated enrolment."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # False for clients of earlier versions: until their profile is stored, a repeat may still replace their token.
    op.add_column("clients", sa.Column("token_used", sa.Boolean(), nullable=False, server_default=sa.false()))
