"""The engine as the front end sees it: its process, its queue, and what happens when it dies."""
