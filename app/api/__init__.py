"""What clients send and what they get, as pydantic models and plain JSON shapes."""
