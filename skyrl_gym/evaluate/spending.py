"""What an evaluation costs: tokens counted at the policy, retries and all, and caps on them."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from skyrl_gym.chat import Renderer
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.files import write_json
from skyrl_gym.policy import Completion, Policy, PolicyLoad, Prompt, ReportsLoad, Sampling

__all__ = ["Caps", "Meter", "Prices", "Spending", "metered", "read_spending"]

SPENDING = "spending.json"
SAVE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens, in whatever currency the caps are in."""

    prompt: float = 0.0
    sampled: float = 0.0


@dataclass(frozen=True, slots=True)
class Spending:
    """Completions and their tokens, those of failed and repeated attempts included.

    `uncounted` completions came without any number of tokens. `cost` is None where there are no prices.
    """

    completions: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    uncounted: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """Of prompts and samples."""
        return self.prompt_tokens + self.sampled_tokens

    def plus(self, prompt: Prompt, completion: Completion, prices: Prices | None) -> Spending:
        """With one completion more."""
        counts = _counts(prompt, completion)
        asked, sampled = counts or (0, 0)
        cost = None
        if prices is not None:
            cost = (self.cost or 0.0) + (asked * prices.prompt + sampled * prices.sampled) / 1e6
        return Spending(
            self.completions + 1,
            self.prompt_tokens + asked,
            self.sampled_tokens + sampled,
            self.uncounted + (counts is None),
            cost,
        )


@dataclass(frozen=True, slots=True)
class Caps:
    """Where an evaluation stops: tokens and cost of the whole folder, seconds of this run. None: nowhere."""

    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None

    def reached(self, spending: Spending) -> str:
        """Which cap is reached, in words, or nothing."""
        if self.tokens is not None and spending.tokens >= self.tokens:
            return f"{spending.tokens:,} tokens are used, the cap is {self.tokens:,}"
        if self.cost is not None and (spending.cost or 0.0) >= self.cost:
            return f"{spending.cost:.4g} is spent, the cap is {self.cost:.4g}"
        return ""


@dataclass
class Meter:
    """Counts what a run folder's evaluation spends, over all its resumptions; `over` is set at a cap.

    Raises:
        ConfigError: a cap on cost without prices.
    """

    folder: Path
    caps: Caps = Caps()
    prices: Prices | None = None
    spending: Spending = field(init=False)
    over: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if self.caps.cost is not None and self.prices is None:
            raise ConfigError("a cap on the cost needs the prices of a million tokens")
        self.spending = read_spending(self.folder) or Spending()
        self._saved = 0.0
        self._check()

    def add(self, prompt: Prompt, completion: Completion) -> None:
        """Counts one completion."""
        self.spending = self.spending.plus(prompt, completion, self.prices)
        if time.monotonic() - self._saved >= SAVE_EVERY_S:
            self.save()
        self._check()

    def save(self) -> None:
        """Writes the sums into the folder."""
        write_json(self.folder / SPENDING, asdict(self.spending))
        self._saved = time.monotonic()

    def _check(self) -> None:
        if self.caps.reached(self.spending):
            self.over.set()


def read_spending(folder: Path) -> Spending | None:
    """What a folder's evaluation has spent so far; None where nothing was counted."""
    file = folder / SPENDING
    return Spending(**json.loads(file.read_bytes())) if file.is_file() else None


def metered(policy: Policy, meter: Meter) -> Policy:
    """The policy, its completions counted; once a cap is reached it answers no more."""
    return _LoadedPolicy(policy, policy, meter) if isinstance(policy, ReportsLoad) else _MeteredPolicy(policy, meter)


class _MeteredPolicy:
    def __init__(self, policy: Policy, meter: Meter) -> None:
        self.name = policy.name
        self._policy = policy
        self._meter = meter

    @property
    def renderer(self) -> Renderer | None:
        return self._policy.renderer

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        if self._meter.over.is_set():
            await asyncio.Event().wait()  # whoever watches the meter cancels
        completion = await self._policy.complete(prompt, sampling)
        self._meter.add(prompt, completion)
        return completion

    async def aclose(self) -> None:
        await self._policy.aclose()


class _LoadedPolicy(_MeteredPolicy):
    """Of a policy that can say how busy it is."""

    def __init__(self, policy: Policy, busy: ReportsLoad, meter: Meter) -> None:
        super().__init__(policy, meter)
        self._busy = busy

    async def current_load(self) -> PolicyLoad:
        return await self._busy.current_load()


def _counts(prompt: Prompt, completion: Completion) -> tuple[int, int] | None:
    """Tokens of the prompt and of the sample; None where nobody counted them."""
    if completion.usage is not None:
        return completion.usage
    asked = completion.prompt_token_ids or prompt.token_ids
    if asked is None or completion.token_ids is None:
        return None
    return len(asked), len(completion.token_ids)
