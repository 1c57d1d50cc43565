"""The engine process: schedules, drafts, verifies, samples. It knows token ids, not text."""
