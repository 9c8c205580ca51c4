"""Runs the migrations on the connection that the store passes in."""

from alembic import context

from qidpfl_server.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
