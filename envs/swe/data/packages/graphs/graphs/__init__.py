"""Small directed graphs."""

from graphs.algorithms import components, cycle, is_reachable, layers, shortest_path, topological_order
from graphs.graph import Graph

__all__ = ["Graph", "components", "cycle", "is_reachable", "layers", "shortest_path", "topological_order"]
