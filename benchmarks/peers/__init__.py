"""The same no-op work in several frameworks, each a program of its own: `python FILE EPISODES AT_ONCE` prints JSON."""
