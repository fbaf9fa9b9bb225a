"""Gymnasium environments for LLM agents, a rollout runner, a multi-turn GRPO trainer and an evaluator."""
