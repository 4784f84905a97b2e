"""`tfm evaluate`: models by test sets, with confidence intervals and significance."""
