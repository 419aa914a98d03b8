"""The page in a real browser, with jobs that the tests make up."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sluice.runtime.coordinator.region.job_time import TimeView
from sluice.runtime.errors import AuthenticationError, ConfigError
from sluice.runtime.service.endpoints import Answer, Endpoint
from sluice.runtime.service.page.page_routes import api_routes, page_routes
from tests.kit.browser import Look, looking, serving
from tests.kit.browser import chromium as chromium
from tests.kit.browser import pictures as pictures
from tests.kit.page_jobs import ShownJobs, history_with, job_with, region_with, suspended
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

UID = job_with().job_uid
LONG_MS = PATIENCE_S * 1000
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 780}
MARKUP = '<script>document.title="read"</script><img src=x onerror=alert(1)>'
READABLE = 4.5
"""The least contrast of text, of WCAG's level AA."""


def shown(regions: int = 3, *, sick: Sequence[int] = (), **options: Any) -> ShownJobs:
    """One job; the ``sick`` regions are suspended."""
    now_ms = int(time.time() * 1000)
    jobs = ShownJobs(now_ms=now_ms, **options)
    jobs.show(with_regions(regions, {number: suspended() for number in sick}))
    jobs.histories[UID] = history_with(regions, now_ms=now_ms)
    return jobs


def with_regions(count: int, changes: dict[int, dict[str, Any]]) -> Any:
    facts = job_with(count)
    assert facts.status is not None
    regions = tuple(
        region_with(number, count=count, **changes.get(number, {})) for number in range(count)
    )
    return replace(facts, status=replace(facts.status, regions=regions))


def routes_of(jobs: ShownJobs) -> list[BaseRoute]:
    return [*page_routes(), *api_routes(jobs)]


def expect_loaded(page: Page) -> None:
    expect(page.locator("h1")).to_be_visible(timeout=LONG_MS)
    expect(page.locator("#connection")).to_have_text("Live", timeout=LONG_MS)


# --- how it looks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("state", ["running", "many", "suspended", "past", "lost", "jobs", "login"])
def test_each_state_fits_its_window_and_can_be_read(
    chromium: Browser, pictures: Path, state: str, window: dict[str, int], scheme: str
) -> None:
    make, job_path = {
        "running": (lambda: shown(3), "/"),
        "many": (lambda: shown(64, sick=[17]), "/"),
        "suspended": (
            lambda: shown(3, sick=[1], service="serve", can_command=True),
            f"/#/jobs/{UID}",
        ),
        "past": (past_jobs, f"/#/jobs/{UID}"),
        "lost": (lambda: shown(3), "/"),
        "jobs": (past_jobs, "/"),
        "login": (lambda: shown(3), "/"),
    }[state]
    service = serving(guarded_routes(make()) if state == "login" else routes_of(make()))
    options = {"viewport": window, "color_scheme": scheme}
    with service, looking(chromium, service.address, path=job_path, **options) as look:
        look.may_lose = state in ("lost", "login")
        expect(look.page.locator("h1")).to_be_visible(timeout=LONG_MS)
        if state == "lost":
            expect_loaded(look.page)
            service.stop()
            expect(look.page.locator("#connection")).to_contain_text("Connection lost")
        if state != "login":
            expect(look.page.locator("main .card").first).to_be_visible()
        width = "phone" if window is PHONE else "wide"
        look.shoot(pictures, f"{state}-{width}-{scheme}")
        assert look.overflow_px() <= 0
        assert unreadable(look.page) == []


def past_jobs() -> ShownJobs:
    """A finished and a failed job, and one that runs, in `sluice serve`."""
    jobs = shown(3, service="serve", can_command=True)
    runs = [
        {"started_ms": jobs.now_ms - at * 3_600_000, "ended_ms": jobs.now_ms, "state": state}
        for at, state in ((9, "failed"), (5, "finished"))
    ]
    jobs.histories[UID]["runs"] = runs
    over = replace(job_with(), status=None, ended_ms=jobs.now_ms - 5_000)
    jobs.show(replace(over, state="finished", started_ms=jobs.now_ms - 9_000_000))
    failed = replace(over, state="failed", job_uid="f", name="orders", error="KafkaError: no")
    jobs.show(replace(failed, checkpoint_uri="file:///checkpoints/orders"))
    clicks = replace(job_with(), job_uid="r", name="clicks", checkpoint_uri="file:///c/clicks")
    jobs.show(replace(clicks, started_ms=jobs.now_ms - 4_000))
    return jobs


_TEXTS = """() => {
  const rgb = (text) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      const paint = at instanceof SVGElement ? "" : style.backgroundColor;
      if (paint && rgb(paint)[3] === 255) return rgb(paint);
    }
    return [255, 255, 255, 255];
  };
  const laneOf = (text) => text.closest("g")?.parentElement?.querySelector(".lane")
    ?? text.parentElement.querySelector(".lane");
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || element.nodeName === "TITLE" || element.nodeName === "title") continue;
    if (!element.checkVisibility() || element.closest(".unseen, .skip, noscript")) continue;
    const style = getComputedStyle(element);
    const isDrawn = element instanceof SVGElement;
    const below = isDrawn && laneOf(element) && element.classList.contains("title")
      ? rgb(getComputedStyle(laneOf(element)).fill) : ground(element);
    const colour = rgb(isDrawn ? style.fill : style.color);
    found.set(`${colour} ${below}`, [colour, below, text]);
  }
  return [...found.values()];
}"""


def unreadable(page: Page) -> list[str]:
    """Texts whose contrast to their ground is too low."""
    pairs: list[tuple[list[int], list[int], str]] = page.evaluate(_TEXTS)
    assert pairs
    return [
        f"{text!r}: {found:.2f} of {colour} on {ground}"
        for colour, ground, text in pairs
        if (found := contrast(colour, ground)) < READABLE
    ]


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """WCAG 2's ratio of the luminances."""

    def luminance(colour: Sequence[int]) -> float:
        parts = [value / 255 for value in colour[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21.0)
    assert contrast((118, 118, 118), (255, 255, 255)) == pytest.approx(4.54, abs=0.01)


def test_the_theme_is_the_systems_until_the_reader_chooses(chromium: Browser) -> None:
    service = serving(routes_of(shown()))
    ground = "getComputedStyle(document.body).backgroundColor"
    with service, looking(chromium, service.address, color_scheme="dark") as look:
        expect_loaded(look.page)
        dark = look.page.evaluate(ground)
        look.page.get_by_role("button", name="Theme: system").click()
        light = look.page.evaluate(ground)
        assert light != dark
        look.page.reload()
        expect(look.page.locator("#theme")).to_have_text("Theme: light")
        assert look.page.evaluate(ground) == light


# --- what it shows --------------------------------------------------------------------------------


def test_names_and_errors_are_shown_as_text(chromium: Browser) -> None:
    jobs = shown(3, service="serve", can_command=True)
    facts = with_regions(3, {1: suspended(MARKUP) | {"region": f"r{MARKUP}"}})
    node = replace(facts.graph[0], name=MARKUP)
    jobs.show(
        replace(
            facts,
            name=MARKUP,
            error=MARKUP,
            host=MARKUP,
            checkpoint_uri=MARKUP,
            graph=(node, *facts.graph[1:]),
            settings={MARKUP: MARKUP},
            status=replace(facts.status, counters={MARKUP: {MARKUP: 1}}),
        )
    )
    jobs.histories[UID]["checkpoints"][-1] |= {"skipped": {MARKUP: MARKUP}, "kind": MARKUP}
    service = serving(routes_of(jobs))
    with service, looking(chromium, service.address) as look:
        expect(look.page.get_by_role("link", name=MARKUP)).to_be_visible(timeout=LONG_MS)
        look.page.get_by_role("link", name=MARKUP).click()
        expect(look.page.locator("h1")).to_contain_text(MARKUP)
        look.page.get_by_role("button", name="Restart …").first.click()
        expect(look.page.get_by_role("dialog")).to_contain_text("Restart region")
        assert look.page.locator("main img, main script, dialog img").count() == 0
        assert look.page.title() != "read"


def test_a_watermark_is_shown_with_its_slowest_split_and_if_it_is_ahead_of_the_clock(
    chromium: Browser,
) -> None:
    """One record far in the future closes windows early: people must see it."""
    jobs = shown(3)
    facts = with_regions(3, {1: {"late_rows": 1_200}})
    jobs.show(facts)
    service = serving(routes_of(jobs))
    with service, looking(chromium, service.address) as look:
        expect_loaded(look.page)
        card = look.page.get_by_role("region", name="Event time")
        expect(card).to_contain_text("orders-1")
        expect(card).to_contain_text("orders-2, orders-5")
        expect(card).to_contain_text("1,200")
        expect(card).not_to_contain_text("ahead of the clock")
        time = TimeView(watermark_ms=jobs.now_ms + 7_200_000, paused=("orders-0",))
        jobs.show(replace(facts, status=replace(facts.status, time=time)))
        expect(card).to_contain_text("ahead of the clock", timeout=LONG_MS)
        expect(card).to_contain_text("all are idle")
        expect(card).to_contain_text("orders-0")
        jobs.show(replace(facts, status=replace(facts.status, time=None)))
        expect(card).to_have_count(0, timeout=LONG_MS)


def test_an_update_keeps_focus_and_what_is_open(chromium: Browser) -> None:
    jobs = shown(3)
    service = serving(routes_of(jobs))
    with service, looking(chromium, service.address) as look:
        expect_loaded(look.page)
        look.page.locator("summary").click()
        row = look.page.locator(".bar").nth(2)
        row.focus()
        row.press("Enter")
        expect(row).to_have_attribute("aria-expanded", "true")
        number = row.get_attribute("data-checkpoint")
        jobs.show(replace(jobs.facts[UID], records_per_s=7_654_321.0))
        expect(look.page.locator(".tiles")).to_contain_text("7,654,321/s", timeout=LONG_MS)
        focused = look.page.evaluate("document.activeElement.dataset.checkpoint")
        assert focused == number
        assert look.page.locator("details").get_attribute("open") is not None


def test_a_lost_connection_is_told_and_comes_back(chromium: Browser) -> None:
    jobs = shown(3)
    first = serving(routes_of(jobs))
    port = int(first.address.rpartition(":")[2])
    with first, looking(chromium, first.address) as look:
        look.may_lose = True
        expect_loaded(look.page)
        first.stop()
        expect(look.page.locator("#connection")).to_contain_text("old", timeout=LONG_MS)
        expect(look.page.locator(".alert")).to_contain_text("No answer.")
        expect(look.page.locator("h1")).to_contain_text("payments")
        with serving(routes_of(jobs), port=port):
            expect(look.page.locator("#connection")).to_have_text("Live", timeout=LONG_MS)
            expect(look.page.locator(".alert")).to_have_count(0)


def test_an_unknown_job_and_an_empty_list_are_told(chromium: Browser) -> None:
    service = serving(routes_of(ShownJobs(service="serve")))
    with service, looking(chromium, service.address) as look:
        look.may_lose = True  # a console names each answer 404
        expect(look.page.locator("main")).to_contain_text("No job has registered", timeout=LONG_MS)
        look.page.goto(f"{service.address}/#/jobs/gone")
        expect(look.page.locator("h1")).to_have_text("This job is not known here.")


def test_jobs_are_filtered_by_name_and_state(chromium: Browser) -> None:
    service = serving(routes_of(past_jobs()))
    with service, looking(chromium, service.address) as look:
        rows = look.page.locator("tbody tr")
        expect(rows).to_have_count(3, timeout=LONG_MS)
        assert "clicks" in rows.first.inner_text()  # what runs comes first
        look.page.get_by_label("State").select_option("failed")
        expect(rows).to_have_count(1)
        look.page.get_by_label("Name").fill("pay")
        expect(look.page.locator("main")).to_contain_text("No job matches the filter.")
        look.page.get_by_label("State").select_option("")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("payments")


def test_states_of_the_service_are_told_in_words(chromium: Browser) -> None:
    jobs = shown(3, service="serve")
    status = jobs.facts[UID].status
    assert status is not None
    jobs.show(replace(jobs.facts[UID], state="stopping", status=replace(status, state="stopping")))
    for uid, state, ended_ms in (
        ("l", "lost", jobs.now_ms),
        ("u", "unreachable", None),
        ("w", "WAITING_FOR_RESOURCES", None),
    ):
        other = replace(job_with(), job_uid=uid, name=uid, status=None, error="since 12:00")
        jobs.show(replace(other, state=state, ended_ms=ended_ms))
    service = serving(routes_of(jobs))
    with service, looking(chromium, service.address) as look:
        states = look.page.locator("tbody .pill")
        for words in ("No sign of life", "No answer", "Waiting for resources", "Stopping"):
            expect(states.filter(has_text=words)).to_have_count(1, timeout=LONG_MS)
        look.page.goto(f"{service.address}/#/jobs/l")
        expect(look.page.locator(".alert")).to_contain_text("The job was killed")
        look.page.goto(f"{service.address}/#/jobs/u")
        expect(look.page.locator(".alert")).to_contain_text("does not answer this service")
        look.page.goto(f"{service.address}/#/jobs/{UID}")
        expect_loaded(look.page)
        expect(look.page.locator(".pill").filter(has_text="Ended")).to_have_count(0)


def test_a_chart_shows_the_value_under_the_pointer(chromium: Browser) -> None:
    service = serving(routes_of(shown()))
    with service, looking(chromium, service.address, viewport=WIDE) as look:
        expect_loaded(look.page)
        readout = look.page.locator(".readout").first
        expect(readout).to_have_text("48,211/s")
        look.page.locator("svg.line").first.hover()
        expect(readout).to_contain_text("/s at ")


# --- many regions ---------------------------------------------------------------------------------


def load_ms(chromium: Browser, address: str) -> float:
    """From the click to the first picture of the job."""
    with looking(chromium, address, viewport=WIDE) as look:
        expect(look.page.locator(".cell")).to_have_count(64, timeout=LONG_MS)
        entry = "performance.getEntriesByName('shown')[0].startTime"
        return float(look.page.evaluate(entry))


def test_64_regions_load_in_a_second_and_are_updated_each_second(chromium: Browser) -> None:
    """The best of some loads: what else the machine does is not the page's."""
    jobs = shown(64, sick=[17])
    service = serving(routes_of(jobs))
    with service:
        loads_ms = [load_ms(chromium, service.address) for _ in range(5)]
        assert min(loads_ms) <= 1_000, loads_ms
    service = serving(routes_of(jobs))
    with service, looking(chromium, service.address, viewport=WIDE) as look:
        expect_loaded(look.page)
        entries = (
            "performance.getEntriesByType('resource')"
            f".filter((e) => e.name.endsWith('{UID}')).map((e) => e.startTime)"
        )
        times = wait_for(lambda: found if len(found := look.page.evaluate(entries)) > 5 else None)
        apart = sorted(after - before for before, after in pairwise(times))
        # A late request is followed by one that is nearer: the middle says how often it asks.
        assert apart[len(apart) // 2] >= 800, apart
        assert apart[0] <= 1_500, apart
        jobs.show(with_regions(64, {5: suspended("disk")}))
        cell = look.page.get_by_role("button", name="orders-5: Suspended")
        expect(cell).to_be_visible(timeout=LONG_MS)


# --- keyboard -------------------------------------------------------------------------------------

_STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
  .filter((each) => each.checkVisibility() && each.tabIndex >= 0 && !each.disabled).length"""
_FOCUSED = """() => {
  const all = [...document.querySelectorAll("*")];
  const style = getComputedStyle(document.activeElement);
  return [all.indexOf(document.activeElement), style.outlineStyle, document.activeElement.nodeName];
}"""


@pytest.mark.parametrize("path", ["/", f"/#/jobs/{UID}"], ids=["jobs", "job"])
def test_the_tab_key_reaches_each_control_and_shows_where_it_is(
    chromium: Browser, path: str
) -> None:
    service = serving(routes_of(shown(64, sick=[17], service="serve", can_command=True)))
    with service, looking(chromium, service.address, path=path, viewport=WIDE) as look:
        expect_loaded(look.page)
        stops = look.page.evaluate(_STOPS)
        reached = set()
        for _ in range(stops):
            look.page.keyboard.press("Tab")
            at, outline, name = look.page.evaluate(_FOCUSED)
            assert name != "BODY"
            assert outline != "none", name
            reached.add(at)
        assert len(reached) == stops


def test_arrow_keys_move_in_the_grid_and_enter_chooses(chromium: Browser) -> None:
    service = serving(routes_of(shown(64)))
    with service, looking(chromium, service.address, viewport=WIDE) as look:
        expect_loaded(look.page)
        look.page.locator(".cell").first.focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "Enter"):
            look.page.keyboard.press(key)
        expect(look.page.locator(".cell[aria-pressed=true]")).to_have_attribute(
            "data-region", "orders-2"
        )
        expect(look.page.locator("tr.chosen")).to_contain_text("orders-2")


# --- commands and the token -----------------------------------------------------------------------


class Commanded:
    """Notes commands; the next one may be refused."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, Any]] = []
        self.refusal: ConfigError | None = None

    def routes(self) -> list[BaseRoute]:
        async def command(request: Request) -> Response:
            if self.refusal is not None:
                raise self.refusal
            verb = request.url.path.removeprefix(f"/v1/jobs/{UID}/")
            self.commands.append((verb, json.loads(await request.body())))
            return Answer({})

        return [Route("/v1/jobs/{uid}/{verb:path}", command, methods=["POST"])]


@pytest.fixture
def commanded(chromium: Browser) -> Iterator[tuple[Look, Commanded]]:
    commands = Commanded()
    jobs = shown(3, sick=[1], service="serve", can_command=True)
    service = serving([*routes_of(jobs), *commands.routes()])
    with service, looking(chromium, service.address, path=f"/#/jobs/{UID}") as look:
        expect_loaded(look.page)
        yield look, commands


def test_no_command_is_sent_without_a_yes(commanded: tuple[Look, Commanded]) -> None:
    look, commands = commanded
    for name in ("Restart suspended …", "Savepoint …", "Stop …"):
        look.page.get_by_role("button", name=name).click()
        expect(look.page.get_by_role("dialog")).to_be_visible()
        expect(look.page.get_by_role("button", name="Cancel")).to_be_focused()
        look.page.keyboard.press("Escape" if name.startswith("Stop") else "Enter")
        expect(look.page.get_by_role("dialog")).to_be_hidden()
    assert commands.commands == []


def test_each_command_is_sent_as_it_was_confirmed(commanded: tuple[Look, Commanded]) -> None:
    look, commands = commanded
    dialog = look.page.get_by_role("dialog")
    look.page.get_by_role("button", name="Restart …", exact=True).click()
    expect(dialog).to_contain_text("Restart region orders-1?")
    dialog.get_by_role("button", name="Restart").click()
    expect(look.page.locator("#announcement")).to_have_text("Restart: requested.")
    look.page.get_by_role("button", name="Savepoint …").click()
    dialog.get_by_role("button", name="Take the savepoint").click()
    expect(dialog).to_be_hidden()
    look.page.get_by_role("button", name="Stop …").click()
    dialog.get_by_label("Take a savepoint at the end").check()
    dialog.get_by_label("Directory of savepoints").fill("hdfs:///savepoints")
    dialog.get_by_role("button", name="Stop the job").click()
    expect(dialog).to_be_hidden()
    assert commands.commands == [
        ("restart", {"regions": ["orders-1"]}),
        ("savepoints", {"kind": "savepoint", "to": None}),
        ("stop", {"drain": False, "savepoint": True, "to": "hdfs:///savepoints"}),
    ]


def test_a_refused_command_says_why_and_stays_open(commanded: tuple[Look, Commanded]) -> None:
    look, commands = commanded
    look.may_lose = True  # the console names each answer 400
    commands.refusal = ConfigError("no region is suspended", {}, "Name one.")
    look.page.get_by_role("button", name="Restart suspended …").click()
    look.page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    problem = look.page.get_by_role("alert").filter(has_text="no region is suspended")
    expect(problem).to_contain_text("Name one.", timeout=LONG_MS)


def test_a_command_without_an_answer_is_told_as_unknown(
    commanded: tuple[Look, Commanded],
) -> None:
    look, _ = commanded
    look.may_lose = True
    look.page.route("**/savepoints", lambda route: route.abort())
    look.page.get_by_role("button", name="Savepoint …").click()
    look.page.get_by_role("dialog").get_by_role("button", name="Take the savepoint").click()
    problem = look.page.get_by_role("dialog").get_by_role("alert")
    expect(problem).to_contain_text("It may have been carried out", timeout=LONG_MS)


def test_a_read_only_port_shows_no_command(chromium: Browser) -> None:
    service = serving(routes_of(shown(3, sick=[1])))
    with service, looking(chromium, service.address) as look:
        expect_loaded(look.page)
        expect(look.page.locator(".alert")).to_contain_text("sluice job restart")
        names = ("restart", "savepoint", "stop")
        assert look.page.locator(",".join(f"[data-action={name}]" for name in names)).count() == 0


def guarded_routes(jobs: ShownJobs) -> list[BaseRoute]:
    """Only for clients with the token ``secret``."""

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            if request.headers.get("authorization") != "Bearer secret":
                raise AuthenticationError("the token is wrong", {}, "Read the token file.")
            return await endpoint(request)

        return answer

    return [*page_routes(), *api_routes(jobs, guarded=guarded)]


def test_a_service_with_a_token_asks_for_it_and_keeps_it_in_the_tab(chromium: Browser) -> None:
    service = serving(guarded_routes(shown()))
    with service, looking(chromium, service.address) as look:
        look.may_lose = True  # the console names each answer 401
        token = look.page.get_by_label("Token")
        token.fill("wrong")
        token.press("Enter")
        expect(look.page.locator("main")).to_contain_text(
            "The service refused this token.", timeout=LONG_MS
        )
        token.fill("secret")
        token.press("Enter")
        expect_loaded(look.page)
        look.page.reload()
        expect_loaded(look.page)
        assert look.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        assert not [url for url in look.requests if "secret" in url]
