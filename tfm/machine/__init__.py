"""The machine and the processes of a run: devices, threads, ranks, launching, watching."""
