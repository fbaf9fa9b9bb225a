import pytest

from graphs import Graph, components, cycle, is_reachable, layers, shortest_path, topological_order


@pytest.fixture
def diamond():
    return Graph([("a", "b", 1), ("a", "c", 4), ("b", "d", 5), ("c", "d", 1), ("d", "e", 2)])


@pytest.fixture
def loop():
    return Graph([("x", "a"), ("a", "b"), ("b", "c"), ("c", "a")])


def test_nodes_in_order(diamond):
    assert list(diamond) == ["a", "b", "c", "d", "e"]
    assert len(diamond) == 5
    assert "a" in diamond
    assert "z" not in diamond


def test_edges(diamond):
    assert ("c", "d", 1) in diamond.edges()
    assert len(diamond.edges()) == 5


def test_weight_defaults_to_one():
    assert Graph([("a", "b")]).weight("a", "b") == 1


def test_an_edge_again_replaces_its_weight(diamond):
    diamond.add_edge("a", "b", 9)
    assert diamond.weight("a", "b") == 9
    assert len(diamond.edges()) == 5


def test_negative_weights_are_refused():
    with pytest.raises(ValueError):
        Graph([("a", "b", -1)])


def test_weight_zero_is_allowed():
    assert Graph([("a", "b", 0)]).weight("a", "b") == 0


def test_add_node_twice(diamond):
    diamond.add_node("a")
    assert diamond.successors("a") == ["b", "c"]


def test_successors_and_predecessors(diamond):
    assert diamond.successors("e") == []
    assert diamond.predecessors("d") == ["b", "c"]
    assert diamond.predecessors("a") == []


def test_remove_node(diamond):
    diamond.remove_node("d")
    assert len(diamond) == 4
    assert diamond.successors("b") == []
    with pytest.raises(KeyError):
        diamond.remove_node("d")


def test_reversed(diamond):
    backwards = diamond.reversed()
    assert backwards.successors("d") == ["b", "c"]
    assert backwards.weight("d", "c") == 1
    assert len(backwards) == 5


def test_reversed_keeps_lonely_nodes():
    graph = Graph()
    graph.add_node("a")
    assert list(graph.reversed()) == ["a"]


def test_layers(diamond):
    assert layers(diamond, "a") == [["a"], ["b", "c"], ["d"], ["e"]]
    assert layers(diamond, "e") == [["e"]]


def test_layers_with_a_loop(loop):
    assert layers(loop, "x") == [["x"], ["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    "start, end, expected", [("a", "e", True), ("a", "a", True), ("e", "a", False), ("b", "c", False), ("c", "e", True)]
)
def test_is_reachable(diamond, start, end, expected):
    assert is_reachable(diamond, start, end) is expected


def test_is_reachable_with_a_loop(loop):
    assert is_reachable(loop, "b", "a")
    assert not is_reachable(loop, "a", "x")


@pytest.mark.parametrize(
    "start, end, expected",
    [
        ("a", "d", (5, ["a", "c", "d"])),
        ("a", "e", (7, ["a", "c", "d", "e"])),
        ("b", "e", (7, ["b", "d", "e"])),
        ("a", "a", (0, ["a"])),
        ("e", "a", None),
    ],
)
def test_shortest_path(diamond, start, end, expected):
    assert shortest_path(diamond, start, end) == expected


def test_shortest_path_prefers_many_light_edges():
    graph = Graph([("a", "z", 10), ("a", "b", 1), ("b", "c", 1), ("c", "z", 1)])
    assert shortest_path(graph, "a", "z") == (3, ["a", "b", "c", "z"])


def test_shortest_path_with_a_loop(loop):
    assert shortest_path(loop, "x", "c") == (3, ["x", "a", "b", "c"])


def test_topological_order(diamond):
    order = topological_order(diamond)
    assert sorted(order) == ["a", "b", "c", "d", "e"]
    assert all(order.index(source) < order.index(target) for source, target, _ in diamond.edges())


def test_topological_order_of_nothing():
    assert topological_order(Graph()) == []


def test_topological_order_with_a_cycle(loop):
    with pytest.raises(ValueError, match="cycle"):
        topological_order(loop)


def test_cycle(loop):
    assert cycle(loop) == ["a", "b", "c"]


def test_no_cycle(diamond):
    assert cycle(diamond) is None


def test_an_edge_to_itself_is_a_cycle():
    assert cycle(Graph([("a", "b"), ("b", "b")])) == ["b"]


def test_components():
    graph = Graph([("a", "b"), ("c", "b"), ("x", "y")])
    graph.add_node("lonely")
    assert components(graph) == [{"a", "b", "c"}, {"x", "y"}, {"lonely"}]


def test_components_of_nothing():
    assert components(Graph()) == []
