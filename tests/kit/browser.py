"""A real browser for tests of the page: Debian's chromium without a window, driven by Playwright.

A test without chromium is skipped; with ``SLUICE_REQUIRE_BROWSER=1`` it fails. The pictures that
tests take are for people: ``SLUICE_PICTURES=DIRECTORY`` keeps them.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from sluice.runtime.service.endpoints import ERROR_ANSWERS
from sluice.runtime.service.http_thread import HttpThread
from sluice.runtime.service.listening.listener import Listener
from tests.kit.waiting import PATIENCE_S

__all__ = ["Look", "chromium", "looking", "pictures", "serving"]

_REQUIRED = "SLUICE_REQUIRE_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser; a module at a time, because its client keeps the main thread's event loop."""
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if path is None:
        assert not os.environ.get(_REQUIRED), f"{_REQUIRED} is set, and there is no chromium"
        pytest.skip("needs chromium (Debian: apt-get install chromium)")
    with sync_playwright() as client:
        # Root may not use Chromium's sandbox; the pages are our own.
        browser = client.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures are kept."""
    directory = Path(os.environ.get("SLUICE_PICTURES", tmp_path))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@dataclass
class Look:
    """A look at the page.

    Attributes:
        page: Playwright's page.
        requests: addresses that it requested.
        complaints: what its console and its scripts complained about.
        may_lose: whether a refused connection is part of the test.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    may_lose: bool = False

    def text(self) -> str:
        """What a reader sees."""
        return self.page.locator("body").inner_text()

    def shoot(self, directory: Path, name: str) -> None:
        """Keep a picture of the whole page."""
        self.page.screenshot(path=directory / f"{name}.png", full_page=True)

    def overflow_px(self) -> int:
        """By how much the page is wider than its window."""
        script = "document.documentElement.scrollWidth - window.innerWidth"
        return int(self.page.evaluate(script))


@contextmanager
def looking(browser: Browser, address: str, *, path: str = "/", **options: Any) -> Iterator[Look]:
    """The page at this address; at the end it had no complaint, and asked no other address.

    Args:
        browser: see `chromium`.
        address: of the service.
        path: with the fragment that names a job.
        options: of Playwright's ``new_context``.
    """
    with browser.new_context(**options) as context:
        look = Look(context.new_page())
        look.page.set_default_timeout(PATIENCE_S * 1000)
        look.page.on("request", lambda request: look.requests.append(request.url))
        look.page.on("pageerror", lambda error: look.complaints.append(str(error)))
        look.page.on(
            "console",
            lambda message: (
                look.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        look.page.goto(address + path)
        yield look
        others = [url for url in look.requests if not url.startswith(f"{address}/")]
        assert not others
        lost = "Failed to load resource"
        assert not [each for each in look.complaints if not (look.may_lose and lost in each)]


def serving(routes: list[BaseRoute], *, port: int = 0) -> HttpThread:
    """A service with these routes, which answers errors as the driver's does."""
    app = Starlette(routes=routes, exception_handlers=ERROR_ANSWERS)
    return HttpThread(app, Listener.open("127.0.0.1", range(port, port + 1)))
