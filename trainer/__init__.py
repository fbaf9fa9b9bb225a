"""Multi-turn GRPO on TRL: the only part of the package with torch and trl."""
