"""What can go wrong, and how an episode can end.

Exceptions (catch the widest one you mean)::

    SkyRLError
     +-- UserError                 what came in from outside is wrong; one line, exit status 2
     |    +-- ConfigError          unknown key, id, value or file
     |    +-- TaskError            a task row can't be used
     |    +-- MessageError         a message, call or conversation breaks its format
     |    +-- MissingDependency    an optional package or program isn't installed
     +-- InfraError                the machinery failed, not the agent: retried, then excluded
     |    +-- SetupError           the environment could not be prepared
     |    |    +-- SetupTimeout
     |    +-- SandboxError         the place where tools act failed
     |    |    +-- SandboxLost     it died while in use
     |    +-- PolicyError          whoever answers (server, model) failed
     |    |    +-- PolicyTimeout
     |    +-- GradeError           the grader failed (it did not say "wrong answer")
     |    |    +-- GradeTimeout
     |    +-- EnvError             an environment says that it can't go on
     |    +-- WorkerLost           the process or node that played the episode died
     +-- ToolError                 raised in a tool: its text is the tool's answer to the model
     +-- EpisodeTimeout            the episode's own clock ran out: the agent's failure, graded
     +-- TurnTimeout               one turn's clock ran out: the agent's failure, graded
     +-- RunTimeout                the whole run's clock ran out
     +-- RunAborted                the run stopped itself; `__cause__` says why

Every timeout has a class of its own, so that a `TimeoutError` raised by user code inside a tool is never
mistaken for one of ours. Anything else that escapes an environment is a bug and is reported as one.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "ConfigError",
    "EnvError",
    "EpisodeTimeout",
    "GradeError",
    "GradeTimeout",
    "InfraError",
    "MessageError",
    "MissingDependency",
    "PolicyError",
    "PolicyTimeout",
    "RunAborted",
    "RunTimeout",
    "SandboxError",
    "SandboxLost",
    "SetupError",
    "SetupTimeout",
    "SkyRLError",
    "StopReason",
    "TaskError",
    "ToolError",
    "TurnTimeout",
    "UserError",
    "WorkerLost",
    "stop_reason_of",
]


class SkyRLError(Exception):
    """Base of every exception that this package raises on purpose."""


class UserError(SkyRLError):
    """Something handed in from outside is wrong; the message says what came, what was expected, what to do."""


class ConfigError(UserError, ValueError):
    """Unknown key, id, value or file."""


class TaskError(UserError, ValueError):
    """A task row can't be used."""


class MessageError(UserError, ValueError):
    """A message, tool call or conversation breaks its format."""


class MissingDependency(UserError, ImportError):
    """An optional package or program isn't installed; the message names the way to get it."""

    @classmethod
    def extra(cls, package: str, extra: str) -> MissingDependency:
        """For a Python package that one of our extras brings."""
        return cls(f"{package} is not installed; it comes with: pip install 'skyrl-suite[{extra}]'")


class InfraError(SkyRLError):
    """The machinery failed, not the agent: the trajectory is retried, then excluded."""


class SetupError(InfraError):
    """The environment could not be prepared."""


class SetupTimeout(SetupError):
    """Preparation took longer than the setup deadline."""


class SandboxError(InfraError):
    """The place where tools act failed."""


class SandboxLost(SandboxError):
    """A sandbox died while it was in use."""


class PolicyError(InfraError):
    """Whoever answers (a server, a model in this process, a script that ran out) failed."""


class PolicyTimeout(PolicyError):
    """One policy call took longer than its deadline."""


class GradeError(InfraError):
    """The grader itself failed; it did not find the answer wrong."""


class GradeTimeout(GradeError):
    """Grading took longer than the grade deadline."""


class EnvError(InfraError):
    """An environment says that it can't go on for a reason outside the agent's reach."""


class WorkerLost(InfraError):
    """The process or node that played the episode died."""


class ToolError(SkyRLError):
    """Raised in a tool, its text becomes the answer to the call: the agent sees it and goes on."""


class EpisodeTimeout(SkyRLError):
    """The episode's own clock ran out: the agent's failure, graded as it stands."""


class TurnTimeout(SkyRLError):
    """One turn, answer and tools together, took longer than its clock: the agent's failure, graded as it stands."""


class RunTimeout(SkyRLError):
    """The whole run's clock ran out."""


class RunAborted(SkyRLError):
    """The run stopped itself; `__cause__` says why."""


class StopReason(StrEnum):
    """How an episode ended. Three bits say what follows: `retry`, `grade`, `valid`."""

    DONE = "done"  # the task's own end: submitted, answered
    MAX_TURNS = "max_turns"
    CONTEXT_FULL = "context_full"  # the next prompt would not fit into the token budget
    LENGTH = "length"  # a completion was cut at its token limit
    INVALID_CALLS = "invalid_calls"  # too many unusable calls in a row
    REPEATED_ACTION = "repeated_action"  # the same action with the same result, again and again
    TURN_TIMEOUT = "turn_timeout"
    EPISODE_TIMEOUT = "episode_timeout"
    SETUP_ERROR = "setup_error"
    SETUP_TIMEOUT = "setup_timeout"
    SANDBOX_ERROR = "sandbox_error"
    SANDBOX_LOST = "sandbox_lost"
    POLICY_ERROR = "policy_error"
    POLICY_TIMEOUT = "policy_timeout"
    GRADE_ERROR = "grade_error"
    GRADE_TIMEOUT = "grade_timeout"
    ENV_ERROR = "env_error"
    WORKER_LOST = "worker_lost"
    CRASH = "crash"  # an exception nobody declared: a bug in an environment, tool or policy
    RUN_TIMEOUT = "run_timeout"
    CANCELLED = "cancelled"
    SURPLUS = "surplus"  # its group had enough trajectories without it

    @property
    def valid(self) -> bool:
        """The reward counts, for training and for the score."""
        return self in _AGENT_ENDINGS

    @property
    def grade(self) -> bool:
        """The episode is graded (an agent's failure is graded too)."""
        return self in _AGENT_ENDINGS

    @property
    def retry(self) -> bool:
        """Trying the same task again may help."""
        return self in _INFRA_ENDINGS

    @property
    def truncated(self) -> bool:
        """Gymnasium's `truncated`: a limit ended the episode, not the task."""
        return self in _AGENT_ENDINGS and self is not StopReason.DONE


_AGENT_ENDINGS = frozenset(
    {
        StopReason.DONE,
        StopReason.MAX_TURNS,
        StopReason.CONTEXT_FULL,
        StopReason.LENGTH,
        StopReason.INVALID_CALLS,
        StopReason.REPEATED_ACTION,
        StopReason.TURN_TIMEOUT,
        StopReason.EPISODE_TIMEOUT,
    }
)
_BY_CLASS: dict[type[BaseException], StopReason] = {
    SetupTimeout: StopReason.SETUP_TIMEOUT,
    SetupError: StopReason.SETUP_ERROR,
    SandboxLost: StopReason.SANDBOX_LOST,
    SandboxError: StopReason.SANDBOX_ERROR,
    PolicyTimeout: StopReason.POLICY_TIMEOUT,
    PolicyError: StopReason.POLICY_ERROR,
    GradeTimeout: StopReason.GRADE_TIMEOUT,
    GradeError: StopReason.GRADE_ERROR,
    WorkerLost: StopReason.WORKER_LOST,
    InfraError: StopReason.ENV_ERROR,
    EpisodeTimeout: StopReason.EPISODE_TIMEOUT,
    TurnTimeout: StopReason.TURN_TIMEOUT,
    RunTimeout: StopReason.RUN_TIMEOUT,
}
_INFRA_ENDINGS = frozenset(reason for cls, reason in _BY_CLASS.items() if issubclass(cls, InfraError))


def stop_reason_of(error: BaseException) -> StopReason:
    """The ending that an exception stands for, by class hierarchy; undeclared ones are a `CRASH`."""
    return next((_BY_CLASS[cls] for cls in type(error).__mro__ if cls in _BY_CLASS), StopReason.CRASH)
