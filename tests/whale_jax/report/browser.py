"""A real browser for the tests of a page: Debian's Chromium, or any other, driven by Playwright."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, Request, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium; skips the tests that need it, and says why, where there is none."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    # Chromium refuses to run its own sandbox as root, as which CI runs; what it opens here are files that a test made.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=arguments)
        except Error as error:
            reason = str(error).splitlines()[0]
            pytest.skip(f"the report page is not tested in a browser: no Chromium ({reason}); apt-get install chromium")
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page of a report, and all that it did beside showing itself.

    Attributes:
        page: the page.
        faults: console messages that are more than information, uncaught errors, dialogs, further windows.
        requests: addresses asked for beyond the file itself.
    """

    page: Page
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, place: str) -> None:
        """Goes to a place in the page, and waits until it is drawn."""
        self.page.evaluate("place => { location.hash = place; }", place)
        section = place.partition("/")[0]
        self.page.wait_for_selector(f'nav a[href="#{section}"][aria-current="page"]')

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()


@contextlib.contextmanager
def opened(browser: Browser, file: Path, *, width: int = 1200, dark: bool = False) -> Iterator[Watched]:
    """A report in a fresh context; when it is closed, it must have asked for nothing and complained of nothing."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True
    )
    context.set_default_timeout(20_000)
    page = context.new_page()
    watched = Watched(page)

    def asked(request: Request) -> None:
        # Boards are data of the page; a blob is a file that the page made.
        if request.url.partition("#")[0] != file.as_uri() and not request.url.startswith(("data:image/", "blob:")):
            watched.requests.append(request.url)

    page.on("request", asked)
    page.on("console", lambda message: watched.faults.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: watched.faults.append(f"uncaught: {error}"))
    page.on("dialog", lambda dialog: watched.faults.append(f"dialog: {dialog.message}"))
    page.on("popup", lambda popup: watched.faults.append(f"window: {popup.url}"))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield watched
    context.close()
    assert watched.faults == [], watched.faults
    assert watched.requests == [], watched.requests
