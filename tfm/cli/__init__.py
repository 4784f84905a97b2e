"""The command line: flags, exit codes and terminal output, without any computation."""
