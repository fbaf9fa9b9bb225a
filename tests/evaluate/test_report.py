"""The report: complete, small, and inert whatever the trajectories hold."""

import base64
import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.evaluate import summarise
from skyrl_gym.evaluate.report import write_report
from skyrl_gym.evaluate.report.survey import choose
from skyrl_gym.evaluate.report.text import clip, plain, visible
from skyrl_gym.evaluate.report.write import MOST_BYTES, MOST_TRAJECTORIES
from skyrl_gym.evaluate.runs import provenance, write_json
from skyrl_gym.messages import ImagePart, Message, TextPart, ToolCall, assistant, system, tool_result, user
from skyrl_gym.rollout import ErrorInfo, Journal, Trajectory, Turn

Make = Callable[..., Trajectory]
TAGS = """
    a article b body circle dd details div dl dt figcaption figure form g h1 h2 h3 h4 head header html
    img input kbd label li line link main meta nav ol option output p path pre rect script section
    select span style summary svg table tbody td th thead title tr ul
"""
ATTRIBUTES = """
    alt aria-current aria-hidden aria-label aria-labelledby aria-live autocomplete charset class content
    cx cy d data-outcome data-part data-reward height hidden href http-equiv id lang loading name
    overflow placeholder preserveaspectratio r rel role rx scope spellcheck src tabindex title type
    value vector-effect viewbox width x1 x2 y1 y2
"""
VOID = {"meta", "link", "img", "input"}


@dataclass
class Parsed(HTMLParser):
    """What a browser would make of a page."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""
    scripts: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        match self.stack[-1] if self.stack else "":
            case "script":
                self.scripts.append(data)
            case "style":
                self.styles.append(data)
            case _:
                self.text += data


def write_run(folder: Path, trajectories: list[Trajectory], kind: str = "eval", **config: Any) -> Path:
    write_json(folder / "run.json", {"kind": kind, "config": config, "provenance": provenance()})
    with Journal(folder / "trajectories.jsonl") as journal:
        for trajectory in trajectories:
            journal.append(trajectory)
    return folder


def parse(path: Path) -> Parsed:
    page = Parsed()
    page.feed(path.read_bytes().decode())
    page.close()
    assert not page.stack
    return page


def report_of(folder: Path, trajectories: list[Trajectory], **config: Any) -> Parsed:
    return parse(write_report(write_run(folder, trajectories, **config)))


# ---- nothing in it can act

ATTACKS = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "</pre></details></article></main><img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "' onmouseover='window.hacked=1",
    "<!--<script>",
    "]]><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "{{ 7 * 191 }}{% raw %}",
    "\u202e<b>gnp.exe\u202c",
    "\x1b[31mred\x1b]0;title\x07",
    '\u200b"\u2066onclick=window.hacked=1 \ud800',
]


def poison(attack: str) -> Trajectory:
    """A trajectory with the attack in each of its fields."""
    call = ToolCall(attack, {attack: attack, "deep": {attack: [attack]}}, attack)
    broken = ToolCall(attack, attack, attack)
    urls = (attack, f"data:text/html,{attack}", f"data:image/svg+xml,{attack}", f"data:image/png;base64,{attack}")
    picture = (TextPart(attack), *map(ImagePart, urls))
    turn = Turn(
        Message("assistant", attack, (call, broken), name=attack, reasoning=attack),
        (tool_result(call, attack), user(picture), Message("tool", attack, tool_call_id=attack, name=attack)),
        finish_reason=attack,
        seconds={attack: 1.0},
        context_edit=True,
        invalid=True,
    )
    return Trajectory(
        env_id=attack,
        task_id=attack,
        task_hash=attack,
        group=attack,
        sample=0,
        stop_reason=StopReason.DONE,
        opening=(system(attack), user(attack)),
        turns=(turn,),
        reward=1.0,
        metrics={attack: 1.0},
        artifacts={attack: attack, "patch": f"--- a/{attack}\n+++ b/{attack}\n@@ -1 +1 @@\n-{attack}\n+{attack}\n"},
        error=ErrorInfo(attack, attack, attack),
        policy=attack,
        seconds={attack: 1.0, "run": 2.0},
    )


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", ["eval", "train"])
def test_every_field_is_inert(tmp_path: Path, attack: str, kind: str) -> None:
    folder = write_run(tmp_path / "run", [poison(attack)], kind, env_id=attack, policy=attack, name={attack: [attack]})
    info = json.loads((folder / "run.json").read_text())
    info["provenance"] = {
        "created": attack,
        "packages": {attack: attack},
        "python": attack,
        "machine": attack,
        "git": attack,
    }
    write_json(folder / "run.json", info)
    rows = [{"step": 1, "reward": 0.5, attack: 1, "loss": attack}, {"step": 2, "reward": 0.6, attack: 2}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = parse(write_report(folder))
    assert {tag for tag, _ in page.tags} <= set(TAGS.split())
    assert len(page.scripts) == 1 and "hacked" not in page.scripts[0] + "".join(page.styles)
    names = {name for _, attributes in page.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert names <= set(ATTRIBUTES.split())
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("href", "src")]
    assert all(value and re.fullmatch(r"#[\w-]+|data:,", value) for value in links)
    shown = "".join(char if char in "\n\t" or char.isprintable() else plain(char) for char in attack)
    assert page.text.count(shown) >= 10


def test_the_browser_is_told_to_run_only_our_script(tmp_path: Path, make: Make) -> None:
    page = report_of(tmp_path, [make()])
    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'")
    for text, kind in ((page.scripts[0], "script-src"), (page.styles[0], "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert not [a for _, a in page.tags if "style" in a]


def test_it_needs_no_network(tmp_path: Path, make: Make) -> None:
    picture = ImagePart.from_bytes(b"\x89PNG")
    turn = Turn(assistant("x"), (user((ImagePart("https://example.com/x.png"), picture)),))
    path = write_report(write_run(tmp_path, [make(turns=(turn,))]))
    page = parse(path)
    assert [a["src"] for _, a in page.tags if "src" in a] == [picture.url]
    assert all(str(a["href"])[:1] == "#" or a["href"] == "data:," for _, a in page.tags if "href" in a)
    assert "url(" not in page.styles[0] and "@import" not in page.styles[0]
    assert "[image: https://example.com/x.png]" in path.read_text()


# ---- nothing in it is hidden


def test_every_character_without_ink_is_shown() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and character not in "\n\t"
        if hidden:
            assert character not in visible(character), hex(code)
            assert character not in plain(character), hex(code)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "aU+202Eb"),
        ("\x1b[1;31mred\x1b[0m", r"\x1b[1;31mred\x1b[0m"),
        ("a\rb\x00", r"a\rb\x00"),
        ("\x85\u2028\ud800", r"\x85U+2028U+D800"),
        ("plain text\n\tof lines", "plain text\n\tof lines"),
        ("漢字 é 🙂️ עברית", "漢字 é 🙂️ עברית"),
    ],
)
def test_hidden_characters_have_ink(text: str, shown: str) -> None:
    assert visible(text).striptags().replace("&#39;", "'") == " ".join(shown.split())
    assert plain(text) == shown


def test_a_long_text_keeps_its_ends() -> None:
    text = clip("a" * 5_000 + "b" * 5_000)
    assert text.startswith("a" * 4_000) and text.endswith("b" * 2_000)
    assert "[... 4,000 characters left out ...]" in text and len(text) < 6_100
    assert clip("short") == "short"


# ---- what it says


def test_an_evaluation(tmp_path: Path, make: Make) -> None:
    trajectories = [make(1.0), make(0.0, "b"), make(None, "c", error=ErrorInfo("SandboxLost", "gone", "Traceback ..."))]
    page = report_of(tmp_path / "run", trajectories, env_id="guess-v0", samples=1, tasks={"count": 3})
    for expected in (
        "Mean reward 0.500",
        "2 of 3",
        "sandbox_lost (excluded)",
        "SandboxLost",
        "gone",
        "task-b",
        "All 3.",
    ):
        assert expected in page.text
    assert "Not complete" not in page.text
    rewards = [a["data-reward"] for tag, a in page.tags if "data-reward" in a]
    assert rewards == ["1.0", "0.0", ""]


def test_a_training(tmp_path: Path, make: Make) -> None:
    folder = write_run(tmp_path / "run", [make(0.5)], "train", model="tiny", env={"id": "guess-v0"})
    rows = [{"step": i + 1, "reward": 0.1 * i, "reward_std": 0.2, "entropy": 2 - i, "kl": 0.0} for i in range(4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, rewards in (("before", [0.0, 0.2, 0.1]), ("after", [0.5, 0.8, 0.7])):
        held = [make(reward, str(i)) for i, reward in enumerate(rewards)]
        write_run(folder / "eval" / name, held, env_id="guess-v0")
        write_json(folder / "eval" / name / "summary.json", summarise(held).to_json())
    page = parse(write_report(folder))
    assert "went from 0.100 to 0.667, a change of +0.423 to +0.710 (95 % interval, paired by task)" in page.text
    charts = [a["aria-label"] for tag, a in page.tags if tag == "svg" and a.get("class") == "plot"]
    assert charts == ["Mean reward by training step; last value 0.3", "Entropy; last value -1"]
    (line,) = [a["d"] for tag, a in page.tags if a.get("class") == "line" and a["d"].count("L") == 3][:1]
    assert line.startswith("M25 ")  # step 1 of 0 to 4: the evaluation before stands at 0
    assert len([a for tag, a in page.tags if a.get("class") == "marker"]) == 2
    assert [a["data-part"] for _, a in page.tags if "data-part" in a] == ["training", *["before"] * 3, *["after"] * 3]


def test_a_run_that_is_not_complete_says_so(tmp_path: Path, make: Make) -> None:
    page = report_of(tmp_path / "eval", [make()], env_id="guess-v0", samples=2, tasks={"count": 4})
    assert "Not complete: 7 of 8 trajectories are missing." in page.text
    assert "the evaluation after training is missing" in report_of(tmp_path / "train", [make()], kind="train").text


def test_nothing_judged_and_nothing_at_all(tmp_path: Path, make: Make) -> None:
    assert "there is no result" in report_of(tmp_path / "starved", [make(None)]).text
    assert "All 0." in report_of(tmp_path / "empty", [], kind="train").text


def test_context_edits_and_notes_are_marked(tmp_path: Path, make: Make) -> None:
    turn = Turn(assistant("x"), (user("new"),), finish_reason="length", context_edit=True, invalid=True, reward=0.25)
    text = report_of(tmp_path, [make(turns=(turn,))]).text
    for expected in ("The conversation was replaced", "finish reason length", "no usable call", "reward +0.25"):
        assert expected in text


def test_what_was_graded_is_shown_line_by_line_and_cut_where_it_is_long(tmp_path: Path, make: Make) -> None:
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1 +1,4001 @@\n-old\n" + "+new line\n" * 4_000
    page = report_of(tmp_path, [make(artifacts={"patch": patch, "empty": ""}), make(task="b")])
    assert page.text.count("What was graded") == 1 and "(empty)" in page.text
    kinds = [attributes.get("class") for tag, attributes in page.tags if tag == "span"]
    assert kinds.count("del") == 1 and 100 < kinds.count("add") < 1_000
    assert "characters left out ...]" in page.text


def test_ids_are_unique_and_links_lead_somewhere(tmp_path: Path, make: Make) -> None:
    page = report_of(tmp_path, [make(1.0, "same", i) for i in range(20)])
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for tag, a in page.tags if tag == "a"}
    targets |= {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert len(targets) > 20 and targets <= set(ids)


# ---- how much of it there is


def test_a_large_run_makes_a_small_report(tmp_path: Path, make: Make) -> None:
    turn = Turn(assistant("x"), (user("<& text and text \u202e" * 2_000),))
    trajectories = [make(1.0, str(i), turns=(turn,) * 3) for i in range(400)]
    path = write_report(write_run(tmp_path, trajectories))
    assert path.stat().st_size < 1.5 * MOST_BYTES
    shown = path.read_text().count("<article ")
    assert 10 < shown <= MOST_TRAJECTORIES and f"{shown} of 400" in parse(path).text


def test_the_choice_holds_first_last_best_worst_and_failures() -> None:
    lines: list[tuple[str, float | None]] = [("done", 0.5)] * 1_000
    lines[400], lines[500], lines[600] = ("done", 1.0), ("done", 0.0), ("crash", None)
    lines[610:700] = [("sandbox_lost", None)] * 90
    chosen = choose(lines, 40)
    assert len(chosen) == 40 and chosen == sorted(set(chosen))
    assert {0, 1, 2, 999, 998, 400, 500, 600, 610} <= set(chosen)
    assert sum(lines[i][0] == "sandbox_lost" for i in chosen) == 3
    assert choose(lines[:30], 40) == list(range(30))


def test_a_long_training_is_thinned(tmp_path: Path, make: Make) -> None:
    folder = write_run(tmp_path, [make()], "train")
    lines = (json.dumps({"step": i + 1, "reward": i % 7 / 7, "loss": i % 5, "kl": i % 3}) + "\n" for i in range(25_000))
    (folder / "metrics.jsonl").write_text("".join(lines))
    path = write_report(folder)
    assert path.stat().st_size < 1_000_000
    page = parse(path)
    assert "25000" in page.text  # the last step is there


def test_it_is_rewritten_whole(tmp_path: Path, make: Make) -> None:
    folder = write_run(tmp_path, [make()])
    first = write_report(folder).read_text()
    assert write_report(folder).read_text() == first
    assert not [file for file in folder.iterdir() if file.name.startswith(".report")]


def test_no_run_folder(tmp_path: Path, make: Make) -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        write_report(tmp_path)
    folder = write_run(tmp_path / "run", [replace(make(), task_id="x")])
    (folder / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="line 1: not a trajectory"):
        write_report(folder)
