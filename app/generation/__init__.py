"""Requests on their way to answers: choices, usage, logprobs, in one piece or in many."""
