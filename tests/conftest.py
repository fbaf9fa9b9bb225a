"""Settings of the whole suite."""

from hypothesis import settings

# No clock on single examples: machines that do several things at once would fail at random.
settings.register_profile("skyrl", deadline=None)
settings.load_profile("skyrl")
