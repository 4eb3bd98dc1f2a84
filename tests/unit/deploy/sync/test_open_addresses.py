"""Open addresses of a Triton, as `doctor --kube` hears of them."""

from __future__ import annotations

import socket

import pytest

from deploy.sync.open_addresses import main


def test_a_triton_that_does_not_answer_is_not_called_closed(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed, and why: `doctor` must not say that only who has the key may load models."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"no Triton answers at {address}" == main(address, address)
    assert "" == capsys.readouterr().out
