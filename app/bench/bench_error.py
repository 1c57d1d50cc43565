"""Why a benchmark cannot go on, in words for the person who started it."""

from __future__ import annotations


class BenchError(Exception):
    """The benchmark cannot run, or a side wrote other bytes than another one."""


class ServerGoneError(BenchError):
    """The server took no connection, or left one before its answer was complete."""
