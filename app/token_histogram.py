"""A histogram that takes many equal values at once, under each of its names. One thread only.

prometheus_client's takes them one by one, each under a lock, which is too slow for every token.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class TokenHistogram(Collector):
    """`names`: each name of the histogram, and its labels."""

    def __init__(
        self, names: Mapping[str, Mapping[str, str]], text: str, buckets: Sequence[float]
    ) -> None:
        self._names = names
        self._text = text
        self._bounds = [*buckets, float("inf")]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._created = time.time()

    def observe(self, value: float, count: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[Metric]:
        bounds = map(floatToGoString, self._bounds)
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        for name, labels in self._names.items():
            family = HistogramMetricFamily(name, self._text, labels=list(labels))
            family.add_metric(list(labels.values()), buckets, self._sum)
            family.add_sample(f"{name}_created", dict(labels), self._created)
            yield family
