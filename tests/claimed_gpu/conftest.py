"""In processes that check the claimed GPU, load its library before torch."""

import os

from claimed_gpu import claim

if claim.GUARD in os.environ:
    claim.load()
