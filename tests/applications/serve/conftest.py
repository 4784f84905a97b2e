"""A server for the tests of one."""

import pytest


@pytest.fixture
def start():
    """Serve routes until the test ends; return the address."""
    from servers import serving  # needs an extra, without which the tests are skipped

    with serving() as serve:
        yield serve
