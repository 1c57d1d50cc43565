"""Structured output: what a grammar lets the next token be."""
