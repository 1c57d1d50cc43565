"""HTTP itself: connections, limits, keys and logs, streams of events, errors at the edge."""
