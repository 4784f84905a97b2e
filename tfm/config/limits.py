"""Limits that settings of several groups share.

Every number has limits far beyond its useful values, so that a mistyped one is refused at once
instead of exhausting memory or overflowing.
"""

MAX_COUNT = 1_000_000_000  # steps, epochs, tokens and the like
MAX_LENGTH = 10_000  # tokens of a sentence; attention needs memory for its square
MAX_MINUTES = 10 * 366 * 24 * 60  # ten years
MAX_THREADS = 1024
MAX_SEED = 2**63 - 1
THREADS_HELP = "Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core."
