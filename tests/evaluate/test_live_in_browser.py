"""The live page in a real browser, driven by Playwright."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate import open_run
from skyrl_gym.evaluate.live import Site, ViewServer
from skyrl_gym.evaluate.runs import write_json
from skyrl_gym.messages import ImagePart, TextPart, ToolCall, assistant, tool_result, user
from skyrl_gym.rollout import Journal, Trajectory, Transition, Turn

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
sync_api = pytest.importorskip("playwright.sync_api")
Make = Callable[..., Trajectory]
ATTACK = "</script></pre><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u202egnp\x1b[2J"
PIXEL = ImagePart(
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9Q"
    "DwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PATCH = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Page:
    """A page, what it complained of, and where else it asked."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.page = browser.new_page(**{"viewport": {"width": 1280, "height": 860}, **options})
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.goto(url)
        self.until("document.querySelector('article')")

    def value(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, expression: str) -> None:
        """Waits; not by Playwright's own way, which evaluates text in the page: its policy forbids that."""
        deadline = time.monotonic() + 60
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def shows(self, text: str) -> None:
        self.until(f"document.querySelector('#articles').textContent.includes({json.dumps(text)})")

    @property
    def count(self) -> str:
        return str(self.value("document.querySelector('output').textContent"))

    @property
    def listed(self) -> int:
        return int(self.value("document.querySelectorAll('#list li').length"))


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Page]]:
    servers: list[ViewServer] = []
    pages: list[Page] = []

    def start(*folders: Path, **options: Any) -> Page:
        site = Site(tuple(open_run(folder) for folder in folders))
        site.grow(30)
        servers.append(ViewServer(site))
        servers[-1].__enter__()
        pages.append(Page(browser, servers[-1].url + options.pop("hash", ""), **options))
        return pages[-1]

    yield start
    for page in pages:
        page.page.close()
    for server in servers:
        server.__exit__(None, None, None)


def write(folder: Path, trajectories: list[Trajectory], **run: Any) -> Path:
    write_json(folder / "run.json", {"kind": "eval", "config": {"policy": ATTACK}, **run})
    with Journal(folder / "trajectories.jsonl") as journal:
        for trajectory in trajectories:
            journal.append(trajectory)
    return folder


@pytest.fixture
def run(tmp_path: Path, make: Make) -> Path:
    """Seven trajectories, hostile ones among them."""
    held = []
    for i in range(6):
        call = ToolCall("look" if i % 2 else "fix", {ATTACK: ATTACK}, "c")
        turn = Turn(
            assistant(f"number {i} {ATTACK}", call),
            (tool_result(call, (TextPart(PATCH), PIXEL)),),
            Transition((1, 2), (3, 4), (-0.1, -3.0), fork=True),
            seconds={"policy": 1.0, "tools": 0.5},
        )
        ending = StopReason.DONE if i % 2 else StopReason.MAX_TURNS
        held.append(make(i / 5, f"{i} {ATTACK}", i, turns=(turn,), stop_reason=ending, opening=(user(ATTACK),)))
    return write(tmp_path / "run", [*held, make(None, "lost")])


def test_nothing_runs_but_the_page_itself(show: Any, run: Path) -> None:
    page = show(run)
    page.press("t", "u")
    page.until("document.querySelector('.token-list')")
    page.press("j")
    page.shows("number 1")
    time.sleep(0.3)
    assert page.value("window.hacked") is None
    assert page.value("document.scripts.length") == 1
    assert page.complaints == []
    assert {url.split("/")[2] for url in page.asked if url.startswith("http")} == {page.page.url.split("/")[2]}
    assert "U+202E" in page.value("document.querySelector('#articles').textContent")
    assert page.value("[...document.querySelectorAll('a')].every(a => a.getAttribute('href').startsWith('#'))")


def test_the_reader_shows_pictures_changes_times_and_tokens(show: Any, run: Path) -> None:
    page = show(run)
    page.value("document.querySelector('article img').scrollIntoView()")  # pictures are drawn when they are seen
    page.until("document.querySelector('article img').naturalWidth === 1")
    assert page.value("document.querySelector('.diff .add').textContent") == "+new\n"
    assert page.value("document.querySelectorAll('svg.timing rect').length") == 4
    assert not page.value("document.querySelector('.call').open")
    page.press("t")
    page.until("document.querySelectorAll('.token-list .s').length === 2")
    assert "id 4, -3.0000" in page.value("document.querySelector('.token-list').innerHTML")


def test_keys_walk_through_the_list_and_the_address_follows(show: Any, run: Path) -> None:
    page = show(run)
    page.press("j")
    page.shows("number 1")
    page.press("j")
    page.shows("number 2")
    assert page.value("location.hash") == "#p0-2"
    assert page.value("document.activeElement.id") == "p0-2"
    assert page.value("document.querySelector('[aria-current=true]').hash") == "#p0-2"
    page.press("k")
    page.shows("number 1")


def test_an_address_opens_its_trajectory(show: Any, run: Path) -> None:
    page = show(run, hash="#p0-4")
    page.shows("number 4")
    page.until("document.querySelector('[aria-current=true]')?.hash === '#p0-4'")


def test_filters_narrow_the_list(show: Any, run: Path) -> None:
    page = show(run)
    page.until("document.querySelector('output').textContent === '7 trajectories'")
    page.until("document.querySelector('[name=tool]').options.length === 4")
    for name, value, count in (
        ("outcome", "max_turns", "3 trajectories"),
        ("outcome", "", "7 trajectories"),
        ("tool", "fix", "3 trajectories"),
        ("tool", "", "7 trajectories"),
        ("reward", "excluded", "1 trajectory"),
        ("reward", "", "7 trajectories"),
    ):
        page.page.select_option(f"[name={name}]", value)
        page.until(f"document.querySelector('output').textContent === '{count}'")
    page.press("/")
    page.page.keyboard.type("NUMBER 3")
    page.until("document.querySelector('output').textContent === '1 found'")
    page.shows("number 3")
    page.page.fill("[name=text]", "nowhere at all")
    page.until("document.querySelector('output').textContent === '0 found'")
    assert page.value("document.querySelector('#articles').childElementCount") == 0
    page.press("Escape", "j")
    assert page.value("document.querySelector('[name=text]').value") == "nowhere at all"


def test_a_long_list_comes_page_by_page(show: Any, tmp_path: Path, make: Make) -> None:
    turns = (Turn(assistant("x")),)
    page = show(write(tmp_path, [make(1.0, f"t{i}", turns=turns) for i in range(350)]))
    page.until("document.querySelector('output').textContent === '350 trajectories'")
    assert page.listed == 100
    page.value("document.querySelector('nav[aria-label=Trajectories]').scrollTo(0, 1e9)")
    page.until("document.querySelectorAll('#list li').length >= 200")
    for _ in range(3):
        page.value("document.querySelector('nav[aria-label=Trajectories]').scrollTo(0, 1e9)")
        time.sleep(0.2)
    page.until("document.querySelectorAll('#list li').length === 350")
    assert page.value("document.querySelector('#more').hidden")


def test_two_runs_stand_side_by_side(show: Any, tmp_path: Path, make: Make) -> None:
    one = write(tmp_path / "one", [make(0.0, "a", turns=(Turn(assistant("said by one")),))])
    two = write(tmp_path / "two", [make(1.0, "a", turns=(Turn(assistant("said by two")),))])
    page = show(one, two)
    page.press("b")
    page.shows("said by two")
    left, right = page.value("[...document.querySelectorAll('article')].map(a => a.getBoundingClientRect().left)")
    assert left < right
    page.press("b")
    page.until("document.querySelectorAll('article').length === 1")


def test_what_is_written_while_one_looks_appears(show: Any, tmp_path: Path, make: Make) -> None:
    page = show(write(tmp_path, [make(1.0, "a")]))
    page.until("document.querySelector('output').textContent === '1 trajectory'")
    with Journal(tmp_path / "trajectories.jsonl") as journal:
        journal.append(make(0.0, "b"))
    page.until("document.querySelector('output').textContent === '2 trajectories'")
    page.until("document.querySelector('#overview').textContent.includes('2/2')")


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_page_is_wider_than_its_screen_and_text_stands_out(show: Any, run: Path, width: int, colours: str) -> None:
    page = show(run, run, viewport={"width": width, "height": 860}, color_scheme=colours)
    page.press("b", "t", "u")
    page.until("document.querySelector('.token-list')")
    assert page.value("document.documentElement.scrollWidth") <= width
    colours_of = "(e, k) => getComputedStyle(e)[k].match(/[\\d.]+/g).slice(0, 3).map(Number)"
    paper = page.value(f"({colours_of})(document.body, 'backgroundColor')")
    ink = page.value(f"({colours_of})(document.body, 'color')")
    soft = page.value(f"({colours_of})(document.querySelector('.meta'), 'color')")
    assert contrast(paper, ink) >= 7 and contrast(paper, soft) >= 4.5


def contrast(one: list[float], two: list[float]) -> float:
    """The ratio of luminances (WCAG 2)."""

    def luminance(colour: list[float]) -> float:
        r, g, b = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in colour))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_everything_can_be_reached_and_is_named(show: Any, run: Path) -> None:
    page = show(run)
    assert page.value("[...document.querySelectorAll('select, input')].every(e => e.labels.length === 1)")
    assert page.value("[...document.querySelectorAll('svg[role=img], nav')].every(e => e.getAttribute('aria-label'))")
    assert page.value("document.documentElement.lang") == "en"
    ids = page.value("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert page.value("document.querySelectorAll('main').length") == 1
    page.press("Tab")
    assert page.value("document.activeElement.className") == "skip"
