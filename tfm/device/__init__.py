"""Properties of the machine: CPU, GPU, memory and threads."""
