"""Triton kernels for GPUs; import them only if `tfm.backends.has_triton`."""
