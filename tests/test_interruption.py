"""Signals that ask a stage to stop."""

import signal

import pytest

from tfm.runtime.interruption import StopRequests


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_only_asks(number, code):
    with StopRequests() as stop:
        assert stop.exit_code is None
        signal.raise_signal(number)
        assert stop.exit_code == code


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_another_ctrl_c_stops_at_once(first):
    with StopRequests():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_given_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequests():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
