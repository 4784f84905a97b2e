"""What this machine can compute with: CPU, GPU, memory and threads."""
