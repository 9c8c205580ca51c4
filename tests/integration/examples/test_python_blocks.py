"""Blocks of Python in the documentation that need no coordinator run as they are printed."""

from typing import Any

from torch import nn

from support.pages import ROOT, blocks


def names_of(page: str) -> dict[str, Any]:
    """What exists after the blocks of a page have run."""
    names: dict[str, Any] = {}
    for block in blocks(ROOT / page, "python"):
        exec(block.text, names)
    return names


def test_the_functions_of_own_rules_can_be_defined_as_printed() -> None:
    assert {"reward", "select"} <= set(names_of("docs/own-rules.md"))


def test_the_network_of_own_data_has_no_batch_normalisation_left() -> None:
    kinds = {type(layer) for layer in names_of("docs/own-data.md")["network"].modules()}
    assert nn.GroupNorm in kinds and nn.BatchNorm2d not in kinds
