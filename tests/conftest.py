"""Settings of the whole suite, and what tests of several folders use."""

from typing import Any

import pytest
from hypothesis import settings

# No clock on single examples: machines that do several things at once would fail at random.
settings.register_profile("skyrl", deadline=None)
settings.load_profile("skyrl")


@pytest.fixture
def preparations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A 1 for each time that a repository in an image was prepared for an agent."""
    from skyrl_gym.envs.swe import container

    counted, prepare = [], container._prepare_for_agent

    async def counting(*arguments: Any) -> Any:
        counted.append(1)
        return await prepare(*arguments)

    monkeypatch.setattr(container, "_prepare_for_agent", counting)
    return counted
