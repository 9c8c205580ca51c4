"""Opens the journals of a fleet, which share the fsyncs of their commits."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from ..errors import JournalError
from .group_log import GroupLog, Waiting, read_log
from .journal import Journal


@contextmanager
def open_journals(paths: Sequence[Path], *, waiting: Waiting = nullcontext) -> Iterator[list[Journal]]:
    """The journals in one folder, locked, up to date, and with one log for their commits.

    `waiting` is the block in which a member waits for the disk.
    A power cut may have left commits in the log of the last fleet, also of journals that are not opened now.
    """
    folder = paths[0].parent
    logged = read_log(folder)
    _allow_open_files(4 * len(paths))
    group: GroupLog | None = None
    try:
        with ExitStack() as opened:
            journals = [opened.enter_context(Journal(path, logged=logged.get(path.name, []))) for path in paths]
            for name in logged.keys() - {path.name for path in paths}:
                # Opened without the log of a fleet: it fsyncs what it gets from the last one.
                Journal(folder / name).close()
            group = _new_log(folder, [journal.path for journal in journals if journal.has_content], waiting)
            for journal in journals:
                journal.join(group)
            yield journals
    finally:
        if group is not None:
            group.close(paths)


def _new_log(folder: Path, journals: Sequence[Path], waiting: Waiting) -> GroupLog:
    try:
        return GroupLog(folder, journals, waiting=waiting)
    except OSError as error:
        raise JournalError(f"the log of the fleet in {folder} cannot be written: {error.strerror}") from error


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files of this process, as far as the system allows: a journal needs up to four."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count + 256
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
