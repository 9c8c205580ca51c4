"""The notebooks of examples/notebooks run from beginning to end, and are stored with their output."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.live
@pytest.mark.long
# The kernel talks to this process over a local connection, and Jupyter warns of that.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(path: Path, tmp_path: Path) -> None:
    notebook = read(path)
    # Raises at the first cell that fails, also by an assertion of the notebook itself.
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", ()) for kind in output.get("data", ())}
    assert {"image/png", "text/html"} <= kinds
    lines = [text for text in _texts(notebook) if ": finished" in text]
    assert any("rounds)" in line for line in lines), "a notebook shows the progress of a task"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran(path: Path) -> None:
    notebook = read(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert any("0 violated" in text for text in _texts(notebook))


def test_the_two_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_mechanism", "paper"]


def read(path: Path) -> Any:
    return nbformat.reads(path.read_text(), as_version=4)  # type: ignore[no-untyped-call]


def _texts(notebook: Any) -> list[str]:
    return [
        str(output.get("text") or output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]
