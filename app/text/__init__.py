"""Text on its way to tokens and back: prompts, templates, stop strings, grammars."""
