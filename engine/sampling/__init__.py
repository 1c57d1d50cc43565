"""From logits to tokens: processing, keyed noise, the choice itself, log-probabilities."""
