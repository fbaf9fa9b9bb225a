"""What a tool gives back: text for the model, an end of the episode, or a new conversation."""

from __future__ import annotations

from dataclasses import dataclass

from skyrl_gym.messages import Content, Conversation

__all__ = ["ContextEdit", "ToolResult", "cap_text", "finish"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call.

    `is_error` marks a tool's own failure, `invalid` a call that no tool could take (unknown name, bad
    arguments). `ends_episode` is the task's own end (submit, answer); `reward` is a reward for this turn
    alone, added to what grading gives.
    """

    content: Content
    is_error: bool = False
    invalid: bool = False
    ends_episode: bool = False
    reward: float = 0.0


@dataclass(frozen=True, slots=True)
class ContextEdit:
    """The conversation is replaced as a whole: memory, summary, hand-off."""

    messages: Conversation
    reward: float = 0.0


def finish(content: str = "Done.", *, reward: float = 0.0) -> ToolResult:
    """A result that ends the episode."""
    return ToolResult(content, ends_episode=True, reward=reward)


def cap_text(text: str, max_bytes: int) -> str:
    """Text cut to about `max_bytes` of UTF-8, its head and tail kept and the cut shown."""
    data = text.encode(errors="surrogatepass")
    if len(data) <= max_bytes:
        return text
    head, tail = data[: max_bytes // 2], data[len(data) - max_bytes // 2 :]
    cut = len(data) - len(head) - len(tail)
    return f"{head.decode(errors='ignore')}\n[... {cut} bytes left out ...]\n{tail.decode(errors='ignore')}"
