"""The tokens of a turn, each with its mask and log-probability, as text where the tokenizer is at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyrl_gym.cache import cache_dir
from skyrl_gym.evaluate.runs import Run
from skyrl_gym.rollout import Transition

__all__ = ["Token", "find_tokenizer", "tokens_of"]

MOST_PROMPT = 2_000
"""Of a longer prompt only so many tokens before the answer are shown."""

LEVELS = (-0.01, -0.1, -0.5, -1.0, -2.0, -4.0)
"""Log-probabilities between which a token's colour changes, from certain to surprising."""

Decode = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `level` is 0 where the environment wrote it, or nothing is known; 1 is certain, 7 surprising."""

    text: str
    sampled: bool
    level: int
    label: str


def tokens_of(step: Transition, decode: Decode | None) -> tuple[list[Token], int]:
    """What was new in the prompt of one answer, then the answer; and how many tokens before them are left out."""
    left_out = max(0, len(step.input_ids) - MOST_PROMPT)
    shown = step.input_ids[left_out:]
    written = [Token(text, False, 0, f"id {i}, not sampled") for i, text in _texts(shown, decode)]
    logprobs: Sequence[float | None] = step.logprobs or [None] * len(step.sampled_ids)
    sampled = [
        Token(text, True, _level(known), f"id {i}, " + ("no log-probability" if known is None else f"{known:.4f}"))
        for (i, text), known in zip(_texts(step.sampled_ids, decode), logprobs, strict=True)
    ]
    return written + sampled, left_out


def find_tokenizer(run: Run, named: str | None = None) -> Decode | None:
    """What turns a run's ids into text: a `tokenizer.json` that is named, or lies where the run's model is.

    None where there is none: ids are shown as numbers.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    for folder in _folders(run, named):
        file = folder if folder.is_file() else folder / "tokenizer.json"
        if file.is_file():
            loaded = Tokenizer.from_file(str(file))
            return lambda ids: [loaded.decode([i], skip_special_tokens=False) for i in ids]
    return None


def _folders(run: Run, named: str | None) -> Iterator[Path]:
    if named is not None:
        yield Path(named).expanduser()
        return
    yield run.path / "model"
    names = [value for key in ("model", "policy") if isinstance(value := run.config.get(key), str)]
    policy: Any = run.config.get("policy")
    if isinstance(policy, Mapping):
        names += [str(policy.get("model", ""))]
    for name in filter(None, names):
        yield Path(name).expanduser()
        yield cache_dir() / "models" / Path(name).name


def _texts(ids: Sequence[int], decode: Decode | None) -> list[tuple[int, str]]:
    return list(zip(ids, [str(i) for i in ids] if decode is None else decode(ids), strict=True))


def _level(logprob: float | None) -> int:
    return 0 if logprob is None else 1 + sum(logprob < level for level in LEVELS)
