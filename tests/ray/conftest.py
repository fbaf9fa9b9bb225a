"""A Ray cluster of two nodes on this machine."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": 100 * 2**20})
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def second_node(cluster: Any) -> Iterator[Any]:
    node = cluster.add_node(num_cpus=4, object_store_memory=100 * 2**20)
    cluster.wait_for_nodes()
    yield node
    if node in cluster.list_all_nodes():
        cluster.remove_node(node, allow_graceful=True)
