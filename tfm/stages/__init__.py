"""One file a command: what each step reads and writes on disk."""
