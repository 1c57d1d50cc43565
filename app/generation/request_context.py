"""Who asks: what a route knows of its caller beside the body."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestContext:
    """`tenant` names whom a turn in the queue is charged to; `request_id` is the client's, or
    made by the server. `arrival_time` is monotonic."""

    request_id: str
    tenant: str = ""
    arrival_time: float = field(default_factory=time.monotonic)
