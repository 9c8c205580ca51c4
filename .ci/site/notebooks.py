"""A notebook with its stored output as Markdown."""

import json
from typing import Any


def as_markdown(notebook: str) -> str:
    """The cells of a notebook, one after the other."""
    return "\n\n".join(part for cell in json.loads(notebook)["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: dict[str, Any]) -> list[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    # A line that changes while a task runs is stored once for every change: the last state is what a reader saw.
    shown = [_output(output) for output in cell["outputs"] if output["output_type"] != "display_data"]
    return [f"```python\n{text}\n```", *filter(None, shown)]


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _plain("".join(output["text"]))
    data = output["data"]
    if "image/png" in data:
        return f"![The output of the cell above](data:image/png;base64,{''.join(data['image/png']).strip()})"
    return _plain("".join(data["text/plain"]))


def _plain(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
