"""Requests that wait for a place in the engine: a bounded queue, shared fairly between tenants.

Plain data: it sends nothing and knows no clock but the one it is given.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.errors import QueueFullError
from engine.messages import AddRequest


@dataclass(order=True, slots=True)
class _Waiting:
    """Sorted by priority, then by arrival. A replayed request was served once: it never expires."""

    priority: int
    order: int
    request: AddRequest = field(compare=False)
    since: float = field(compare=False)
    may_expire: bool = field(compare=False)


@dataclass(slots=True)
class _Tenant:
    """`virtual_time` is how much this tenant was served, in tokens."""

    waiting: list[_Waiting] = field(default_factory=list)
    virtual_time: float = 0.0


class RequestQueue:
    """Smaller priorities first; among equals, the tenant who was served least; then by arrival.

    Start-time fair queueing (Goyal, Vin and Cheng 1996): a request costs its prompt tokens and the
    output tokens that it asks for, and a tenant who was idle starts where the others are, so that
    nobody saves up turns.
    """

    def __init__(
        self,
        *,
        max_num_requests: int,
        max_num_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_num_requests = max_num_requests
        self._max_num_tokens = max_num_tokens
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._tenant_names: dict[str, str] = {}
        self._num_added = 0
        self._virtual_time = 0.0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._tenant_names)

    def check_room(self, requests: Sequence[AddRequest]) -> None:
        """Raises QueueFullError unless all would fit. An empty queue has room for any call."""
        if not self._tenant_names:
            return
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        if len(self) + len(requests) > self._max_num_requests:
            raise QueueFullError(f"{len(self)} requests are waiting already. Try again later.")
        if self.num_tokens + num_tokens > self._max_num_tokens:
            raise QueueFullError(
                f"{self.num_tokens} prompt tokens are waiting already. Try again later."
            )

    def add(self, request: AddRequest, *, tenant: str, front: bool = False) -> None:
        """`front` is for a request that was taken before and must be served again."""
        self._num_added += 1
        waiting = _Waiting(
            priority=request.priority,
            order=self._num_added - (1 << 62 if front else 0),
            request=request,
            since=self._clock(),
            may_expire=not front,
        )
        heapq.heappush(self._tenants.setdefault(tenant, _Tenant()).waiting, waiting)
        self._tenant_names[request.request_id] = tenant
        self.num_tokens += len(request.prompt_token_ids)

    def pop(self) -> AddRequest | None:
        """The next one to be served."""
        tenants = [tenant for tenant in self._tenants.values() if tenant.waiting]
        if not tenants:
            return None
        tenant = min(tenants, key=self._turn)
        self._virtual_time = self._start_time(tenant)
        request = heapq.heappop(tenant.waiting).request
        cost = len(request.prompt_token_ids) + request.sampling_params.max_tokens
        tenant.virtual_time = self._virtual_time + cost
        self._forget(request)
        return request

    def remove(self, request_id: str) -> bool:
        """Whether it was waiting."""
        name = self._tenant_names.get(request_id)
        if name is None:
            return False
        tenant = self._tenants[name]
        (found,) = (w for w in tenant.waiting if w.request.request_id == request_id)
        tenant.waiting = [w for w in tenant.waiting if w is not found]
        heapq.heapify(tenant.waiting)
        self._forget(found.request)
        return True

    def expired(self, max_seconds: float) -> list[str]:
        """Who has waited longer than this."""
        latest = self._clock() - max_seconds
        return [
            waiting.request.request_id
            for tenant in self._tenants.values()
            for waiting in tenant.waiting
            if waiting.may_expire and waiting.since < latest
        ]

    def _turn(self, tenant: _Tenant) -> tuple[int, bool, float, int]:
        head = tenant.waiting[0]
        return head.priority, head.may_expire, self._start_time(tenant), head.order

    def _start_time(self, tenant: _Tenant) -> float:
        return max(tenant.virtual_time, self._virtual_time)

    def _forget(self, request: AddRequest) -> None:
        del self._tenant_names[request.request_id]
        self.num_tokens -= len(request.prompt_token_ids)
