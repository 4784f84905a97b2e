"""Metrics, with signatures that make scores reproducible."""
