"""The model: its description, its weights on disk, and its forward pass."""
