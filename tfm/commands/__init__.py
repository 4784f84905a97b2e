"""The commands as functions, each the only declaration of its parameters and their help."""
