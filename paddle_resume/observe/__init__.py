"""What people and programs see of a run: log lines and events.jsonl."""
