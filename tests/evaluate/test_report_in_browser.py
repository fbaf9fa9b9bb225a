"""The report in a real browser, where there is one."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate.report import write_report
from skyrl_gym.evaluate.runs import write_json
from skyrl_gym.messages import assistant
from skyrl_gym.rollout import Journal, Trajectory, Turn

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
Make = Callable[..., Trajectory]
HIDDEN = "\x1b[31mred \u202egnp.exe\u202c"
ATTACK = "</script></pre><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


class Browser:
    """Headless Chromium driven over its debugging pipe: JSON objects that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

        def plumb() -> None:
            # The browser reads descriptor 3 and writes 4; high numbers first, so that neither is overwritten.
            high = [os.dup2(commands, 100), os.dup2(answers, 101)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        assert CHROMIUM is not None
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        self.process = subprocess.Popen(
            [CHROMIUM, *flags, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=plumb,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 65_536)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def open(self, path: Path, width: int = 1200) -> None:
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def close(self) -> None:
        self.session = None
        self.ask("Browser.close")
        self.process.wait(10)
        os.close(self._write)
        os.close(self._read)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def report(tmp_path: Path, make: Make) -> Path:
    write_json(tmp_path / "run.json", {"kind": "train", "config": {"model": ATTACK}})
    rows = [{"step": i + 1, "reward": 0.1 * i, "reward_std": 0.2} for i in range(5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Journal(tmp_path / "trajectories.jsonl") as journal:
        patch = f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{ATTACK}\n+{HIDDEN} {'long ' * 500}\n"
        for i in range(6):
            said = Turn(assistant(f"number {i} {ATTACK} {'long' * 500}"))
            ending = StopReason.DONE if i % 2 else StopReason.MAX_TURNS
            journal.append(make(i / 5, ATTACK, i, turns=(said,), stop_reason=ending, artifacts={"patch": patch}))
        journal.append(make(None, "lost"))
    return write_report(tmp_path)


SHOWN = "[...document.querySelectorAll('#articles > article')].filter(a => a.offsetHeight).map(a => a.id).join()"
LISTED = "[...document.querySelectorAll('#list > li')].filter(a => a.offsetHeight).length"


def test_nothing_runs_but_the_report_itself(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert browser.value("window.hacked") is None
    assert browser.value("document.scripts.length") == 1
    assert browser.value("document.documentElement.className") == "interactive"
    assert browser.value("getComputedStyle(document.body).maxWidth") != "none"  # the style sheet is let in, too
    complaints = [
        event for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")
    ]
    assert complaints == []
    asked = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_lines_of_a_diff_have_their_colours_and_hidden_characters_stay_in_them(
    browser: Browser, report: Path, scheme: str
) -> None:
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(report)
    style = "getComputedStyle(document.querySelector('#t1 .artifacts .diff {}')).{}"
    colours = {browser.value(style.format(kind, "backgroundColor")) for kind in (".add", ".del", ".hunk")}
    assert len(colours) == 3
    assert browser.value(style.format(".add .hidden", "display")) == "inline"
    assert browser.value(style.format(".add", "display")) == "block"


def test_keys_walk_through_the_trajectories(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert browser.value(SHOWN) == "t1"
    browser.press("j", "j")
    assert browser.value(SHOWN) == "t3" and browser.value("location.hash") == "#t3"
    browser.press("k")
    assert browser.value(SHOWN) == "t2"
    browser.press("k", "k", "k")
    assert browser.value(SHOWN) == "t1"
    assert browser.value("document.querySelector('[aria-current=true]').hash") == "#t1"


def test_filters_narrow_the_list(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert browser.value(LISTED) == 7
    for name, value, count in (
        ("outcome", "max_turns", 3),
        ("outcome", "", 7),
        ("reward", "excluded", 1),
        ("reward", "passed", 1),
        ("reward", "", 7),
    ):
        browser.value(
            f"document.forms[0].{name}.value = '{value}'; document.forms[0].dispatchEvent(new Event('input')); 0"
        )
        assert browser.value(LISTED) == count
    browser.press("/", *"NUMBER 4")
    assert browser.value(LISTED) == 1 and browser.value(SHOWN) == "t5"
    assert browser.value("document.forms[0].count.textContent") == "1 trajectory"
    browser.press("Escape", "j")
    assert browser.value(SHOWN) == "t5"
    browser.press("/", "j", "x")  # in the field, letters are letters
    assert browser.value(LISTED) == 0 and browser.value(SHOWN) == ""


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_no_page_is_wider_than_its_screen(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width)
    assert browser.value("document.documentElement.scrollWidth") <= width
