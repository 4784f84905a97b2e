"""The command line: flags, exit codes and terminal output; nothing here computes."""
