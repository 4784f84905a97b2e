"""Triton kernels for GPUs; import them only where `tfm.backends.has_triton` says so."""
