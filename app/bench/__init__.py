"""`tandem bench`: what speculation does to one's own prompts, seen from the outside, over HTTP."""
