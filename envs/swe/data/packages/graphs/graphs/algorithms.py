"""Questions about graphs."""

import heapq
from collections import deque


def layers(graph, start):
    """Nodes by their number of steps from the start."""
    seen = {start}
    found = [[start]]
    while True:
        following = []
        for node in found[-1]:
            for target in graph.successors(node):
                if target not in seen:
                    seen.add(target)
                    following.append(target)
        if not following:
            return found
        found.append(following)


def is_reachable(graph, start, end):
    """Whether a path of any length, also of none, leads from start to end."""
    waiting = deque([start])
    seen = {start}
    while waiting:
        node = waiting.popleft()
        if node == end:
            return True
        for target in graph.successors(node):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return False


def shortest_path(graph, start, end):
    """(total weight, nodes) of the lightest path; None if there is none."""
    best = {start: 0}
    came_from = {}
    waiting = [(0, 0, start)]
    count = 0
    while waiting:
        distance, _, node = heapq.heappop(waiting)
        if node == end:
            return distance, _walk_back(came_from, start, end)
        if distance > best[node]:
            continue
        for target in graph.successors(node):
            candidate = distance + graph.weight(node, target)
            if target not in best or candidate < best[target]:
                best[target] = candidate
                came_from[target] = node
                count += 1
                heapq.heappush(waiting, (candidate, count, target))
    return None


def _walk_back(came_from, start, end):
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    path.reverse()
    return path


def topological_order(graph):
    """Every node after all that lead to it; ValueError if there is a cycle."""
    missing = {node: len(graph.predecessors(node)) for node in graph}
    ready = deque(node for node in graph if missing[node] == 0)
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for target in graph.successors(node):
            missing[target] -= 1
            if missing[target] == 0:
                ready.append(target)
    if len(order) < len(graph):
        raise ValueError("the graph has a cycle")
    return order


def cycle(graph):
    """The nodes of a cycle in its order, or None."""
    done = set()
    for start in graph:
        found = _cycle_from(graph, start, [], set(), done)
        if found:
            return found
    return None


def _cycle_from(graph, node, path, on_path, done):
    if node in on_path:
        return path[path.index(node):]
    if node in done:
        return None
    on_path = on_path | {node}
    for target in graph.successors(node):
        found = _cycle_from(graph, target, [*path, node], on_path, done)
        if found:
            return found
    done.add(node)
    return None


def components(graph):
    """Sets of nodes that are connected when directions are left out, the largest first."""
    backwards = graph.reversed()
    seen = set()
    found = []
    for start in graph:
        if start in seen:
            continue
        group = {start}
        waiting = [start]
        while waiting:
            node = waiting.pop()
            for target in graph.successors(node) + backwards.successors(node):
                if target not in group:
                    group.add(target)
                    waiting.append(target)
        seen |= group
        found.append(group)
    return sorted(found, key=len, reverse=True)
