"""A visit of a page in a real browser: what the console says, what axe-core finds, and what the screen shows."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = Path(__file__).parents[1] / "data/axe/axe.min.js"

# Every line of text with the part of its box that its scrolling ancestors show, compared with all others.
_OVERLAPS = """() => {
  const lines = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.data.trim() || node.parentElement.closest('.visually-hidden, .skip, .tip, option, noscript')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom];
      for (let up = node.parentElement; up; up = up.parentElement) {
        if (getComputedStyle(up).overflow === 'visible' || up === document.body) continue;
        const seen = up.getBoundingClientRect();
        [left, top] = [Math.max(left, seen.left), Math.max(top, seen.top)];
        [right, bottom] = [Math.min(right, seen.right), Math.min(bottom, seen.bottom)];
      }
      // Fonts have space above and below their letters.
      const free = (bottom - top) / 5;
      if (right - left > 1 && bottom - top > 4) lines.push([left, top + free, right, bottom - free, node.data.trim()]);
    }
  }
  const found = [];
  lines.forEach((one, i) => lines.slice(i + 1).forEach((other) => {
    const wide = Math.min(one[2], other[2]) - Math.max(one[0], other[0]);
    const high = Math.min(one[3], other[3]) - Math.max(one[1], other[1]);
    if (wide > 1.5 && high > 1.5) found.push(`${one[4].slice(0, 40)} | ${other[4].slice(0, 40)}`);
  }));
  return found;
}"""


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

    def overlaps(self) -> list[str]:
        """The pairs of texts on the screen that cover each other."""
        found: list[str] = self.page.evaluate(_OVERLAPS)
        return found

    def charts(self) -> Iterator[Any]:
        """The cards with a chart."""
        yield from self.page.locator("section.card:has(.figure)").all()

    def saved(self, card: Any) -> list[list[str]]:
        """The lines of the CSV file behind a chart."""
        with self.page.expect_download() as download:
            card.get_by_role("button", name="CSV").click()
        with Path(download.value.path()).open(newline="") as file:
            return list(csv.reader(file))
