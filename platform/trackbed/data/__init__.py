"""Data sets: built (`pydocs`) or brought (JSONL of chat messages), checked line by line, encoded, packed."""
