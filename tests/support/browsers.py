"""A headless Chromium of the distribution, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def chromium_path() -> str | None:
    """Where Chromium is installed; None if it is not. `QIDPFL_CHROMIUM` names another one."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return os.environ.get("QIDPFL_CHROMIUM") or next(filter(None, found), None)


def missing_browser() -> str | None:
    """Why the tests in a browser cannot run; None if they can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: make setup"
    return None if chromium_path() else "no Chromium is installed: apt-get install chromium"


@contextmanager
def opened_browser() -> Iterator["Browser"]:
    """A browser for a `with` block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
