"""Own data of an owner: the options of `run` for it, and the preview of what is sent and what is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.workloads.own_data.labels import listed
from qidpfl_shared.workloads.own_data.reading import OwnFiles

from ..errors import Misconfigured
from ..owner import Owner, lowered
from ..participant.data_source import DataSource, Learner, OpenData

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="QIDPFL_DATA",
        help="your own data: a CSV, Parquet or .npz file, a folder of them, a folder with one folder of images per"
        " label, a data set of Hugging Face on disk; - reads CSV from a pipe",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", envvar="QIDPFL_MODEL", help="with --data: your own network, module:Class or file.py:Class"),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="with --data: YOURS=THE_TASKS, a column with another name in the task; repeatable"),
]
LabelNames = Annotated[
    list[str] | None,
    typer.Option(
        "--label-name", help="with --data: YOURS=THE_TASKS, a label with another name in the task; repeatable"
    ),
]
CheckOnly = Annotated[
    bool,
    typer.Option("--check-only", help="check the data, show what would be sent, and stop; nothing is sent or stored"),
]
# A histogram in the terminal shows at most so many labels.
_SHOWN_LABELS = 20


def files_of(
    data: Path | None,
    columns: list[str] | None,
    label_names: list[str] | None,
    *,
    model: str | None,
    workload: str | None,
    testbed_shard: bool,
) -> OwnFiles | None:
    """The files of the options, or None. Raises `Misconfigured` if the options contradict each other."""
    if data is None:
        for name, given in (("--model", model), ("--column", columns), ("--label-name", label_names)):
            if given:
                raise Misconfigured(f"{name} needs --data FOLDER|FILE")
        return None
    if workload is not None:
        raise Misconfigured("--data needs no Python and --workload is Python: give one of them")
    if testbed_shard:
        raise Misconfigured("--data never uses a shard of a testbed: leave --testbed-shard out")
    return OwnFiles(
        path=data, columns=_pairs("--column", columns or []), labels=_pairs("--label-name", label_names or [])
    )


class PreviewedData:
    """Opens the data once, and shows what will be sent of them before anything is."""

    def __init__(self, opened: OpenData, owner: Owner, report: Callable[[str], None]) -> None:
        self._open = opened
        self._owner = owner
        self._report = report
        # A client opens its data again when it reconnects. A pipe can be read only once.
        self._known: dict[str, DataSource] = {}

    def __call__(self, spec: TaskSpec) -> DataSource:
        known = self._known.get(spec.digest)
        if known is not None:
            return known
        data = self._open(spec)
        if spec.data is not None:
            self._preview(spec, data)
        self._known[spec.digest] = data
        return data

    def _preview(self, spec: TaskSpec, data: DataSource) -> None:
        # Also checks that the network accepts the records.
        learner = data.learner(0)
        for note in getattr(getattr(data, "workload", None), "notes", ()):
            self._report(f"note: {note}")
        for line in preview_lines(spec, self._owner, learner):
            self._report(line)


def preview_lines(spec: TaskSpec, owner: Owner, learner: Learner) -> list[str]:
    """The counts per label, what will be sent, and what will not."""
    assert spec.data is not None
    shown, counts = spec.data.label.shown, [int(count) for count in learner.label_counts]
    inputs = " x ".join(map(str, spec.data.record_shape))
    lines = [f"{learner.size} records of {inputs} inputs; these counts stay on this machine:"]
    widest = max((len(name) for name in shown[:_SHOWN_LABELS]), default=0)
    for name, count in list(zip(shown, counts, strict=True))[:_SHOWN_LABELS]:
        bar = "#" * round(30 * count / max(1, max(counts)))
        lines.append(f"  {name or '(none)':<{min(widest, 40)}} {count:>9} {bar}".rstrip())
    if len(shown) > _SHOWN_LABELS:
        lines.append(f"  and {len(shown) - _SHOWN_LABELS} more labels")
    absent = [name or "(none)" for name, count in zip(shown, counts, strict=True) if count == 0]
    if absent:
        lines.append(
            f"note: you have no record of {listed(absent)}: the model learns this label only if another owner has it"
        )
    return [*lines, *_sent_lines(spec, owner)]


def _sent_lines(spec: TaskSpec, owner: Owner) -> list[str]:
    labels = spec.workload.labels
    if owner.no_histogram:
        histogram = "no label histogram"
    elif owner.exact_histogram:
        histogram = f"the exact label histogram ({labels} counts), without protection"
    else:
        rho = lowered(owner.histogram_rho, spec.privacy.histogram_rho)
        histogram = f"a label histogram with noise ({labels} counts, rho {rho:g} at most)"
    kibibytes = spec.layout.byte_length / 1024
    noise = "with noise" if spec.privacy.noise else "WITHOUT noise"
    return [
        f"will be sent: the number of records, your privacy value, {histogram};"
        f" in each of {spec.game.horizon} rounds one update of {spec.dimension} numbers ({kibibytes:.1f} KiB) {noise}",
        "will not be sent: records, exact counts, names of files and unused columns, anything else of this machine",
    ]


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        own, equals, name = text.partition("=")
        if not equals or not own or not name:
            raise Misconfigured(f"{option} {text!r} must be YOURS=THE_TASKS")
        pairs[own] = name
    return pairs
