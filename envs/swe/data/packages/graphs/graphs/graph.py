"""A directed graph with a weight on every edge."""


class Graph:
    """Nodes keep the order in which they came."""

    def __init__(self, edges=()):
        self._targets = {}
        for edge in edges:
            self.add_edge(*edge)

    def __contains__(self, node):
        return node in self._targets

    def __iter__(self):
        return iter(self._targets)

    def __len__(self):
        return len(self._targets)

    def add_node(self, node):
        self._targets.setdefault(node, {})

    def add_edge(self, source, target, weight=1):
        if weight < 0:
            raise ValueError("weights are not negative")
        self.add_node(source)
        self.add_node(target)
        self._targets[source][target] = weight

    def remove_node(self, node):
        if node not in self._targets:
            raise KeyError(node)
        del self._targets[node]
        for targets in self._targets.values():
            targets.pop(node, None)

    def edges(self):
        return [(source, target, weight) for source in self for target, weight in self._targets[source].items()]

    def successors(self, node):
        return list(self._targets[node])

    def predecessors(self, node):
        return [source for source in self if node in self._targets[source]]

    def weight(self, source, target):
        return self._targets[source][target]

    def reversed(self):
        found = Graph()
        for node in self:
            found.add_node(node)
        for source, target, weight in self.edges():
            found.add_edge(target, source, weight)
        return found
