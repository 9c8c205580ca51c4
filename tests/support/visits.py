"""A visit of a page in a real browser: what the console says, what axe-core finds, and what the screen shows."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = Path(__file__).parents[1] / "data/axe/axe.min.js"


class Visit:
    """A page in a context of its own, which collects what the console says."""

    def __init__(self, browser: "Browser", url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(url)

    def text(self) -> str:
        return self.page.inner_text("main")

    def open_tables(self) -> None:
        """Open the table behind every chart."""
        self.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")

    def serious_findings(self) -> list[tuple[str, list[str]]]:
        """What axe-core finds on the page that is serious or critical."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def fits(self) -> bool:
        """Whether nothing is wider than the screen."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def charts(self) -> Iterator[Any]:
        """The cards with a chart."""
        yield from self.page.locator("section.card:has(.figure)").all()

    def saved(self, card: Any) -> list[list[str]]:
        """The lines of the CSV file behind a chart."""
        with self.page.expect_download() as download:
            card.get_by_role("button", name="CSV").click()
        with Path(download.value.path()).open(newline="") as file:
            return list(csv.reader(file))
