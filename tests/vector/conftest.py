"""An environment of each test's own."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.vector.walks import Walk


@pytest.fixture
def world() -> Iterator[type[Walk]]:
    """Makes environments; when the test is over, each one that was opened has been closed once."""
    counts: Counter[str] = Counter()

    class Fresh(Walk):
        world = counts

    yield Fresh
    assert counts["opened"] == counts["closed"]
    assert not [thread for thread in threading.enumerate() if "Fresh" in thread.name]
