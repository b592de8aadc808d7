"""What Alembic runs around the versions in this folder. The connection comes from migrating.py, which also knows when."""

from __future__ import annotations

from alembic import context

from annotation.storage.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
