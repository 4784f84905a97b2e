"""The work of the commands: what each stage reads, computes and writes on disk."""
