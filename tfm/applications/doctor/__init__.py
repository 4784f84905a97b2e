"""Checks of this machine, the working folder and what is installed."""
