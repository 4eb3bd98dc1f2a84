"""This machine is excepted from the proxy of the environment, and what was excepted stays so."""

from __future__ import annotations

import pytest

from deploy.tools.proxies import except_loopback

LOOPBACK = "127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (LOOPBACK, LOOPBACK)),
        ({"NO_PROXY": "inner"}, (f"inner,{LOOPBACK}", f"inner,{LOOPBACK}")),
        ({"no_proxy": "inner"}, (f"inner,{LOOPBACK}", f"inner,{LOOPBACK}")),
        ({"no_proxy": "", "NO_PROXY": "inner"}, (f"inner,{LOOPBACK}", f"inner,{LOOPBACK}")),
        ({"no_proxy": "near", "NO_PROXY": "inner"}, (f"near,{LOOPBACK}", f"inner,{LOOPBACK}")),
        ({"NO_PROXY": "*"}, ("*", "*")),
        ({"no_proxy": "localhost"}, ("localhost,127.0.0.1",) * 2),
    ],
)
def test_this_machine_is_excepted_and_other_hosts_stay_so(given: dict[str, str], found: tuple[str, str]) -> None:
    """Whichever of the two names a program reads. A second time changes nothing."""
    environ = dict(given)
    for _ in range(2):
        except_loopback(environ)
        assert found == (environ["no_proxy"], environ["NO_PROXY"])
