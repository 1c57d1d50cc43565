from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from app.token_histogram import TokenHistogram

BUCKETS = (0.25, 1.0, 2.5)
# Sums of these are exact in any order.
values = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 2.5, 3.0, 1000.0])


def exposed(registry: CollectorRegistry) -> str:
    return re.sub(r"(_created.*) \S+", r"\1", generate_latest(registry).decode())


@given(st.lists(st.tuples(values, st.integers(1, 16)), max_size=20))
def test_it_shows_what_prometheus_clients_own_histogram_shows(observations):
    labels = {"model_name": 'a"b', "engine": "0"}
    registry, oracle_registry = CollectorRegistry(), CollectorRegistry()
    histogram = TokenHistogram({"ours": {}, "vllm:ours": labels}, "Text.", BUCKETS)
    registry.register(histogram)
    plain = Histogram("ours", "Text.", registry=oracle_registry, buckets=BUCKETS)
    labelled = Histogram(
        "vllm:ours", "Text.", [*labels], registry=oracle_registry, buckets=BUCKETS
    ).labels(**labels)
    for value, count in observations:
        histogram.observe(value, count)
        for _ in range(count):
            plain.observe(value)
            labelled.observe(value)
    assert exposed(registry) == exposed(oracle_registry)
