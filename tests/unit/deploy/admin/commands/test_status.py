"""``triton-gateway status``: what it tells people beside the table."""

from __future__ import annotations

from deploy.admin.commands.status import describe


def test_what_a_bare_name_means_and_what_pooling_outside_costs_is_told() -> None:
    """And whether that version answers."""
    status = {
        "ready": True, "defaults": {"faq": "faq/1", "old": "old/1"},
        "endpoints": [
            {"url": "faq/1", "state": "serving", "details": {"token_vectors": True}},
            {"url": "old/2", "state": "serving", "details": {}},
        ],
    }  # fmt: skip
    lines = describe("http://g", status, None)
    assert "default faq: faq/1" in lines
    assert "default old: old/1, which is not served" in lines
    (note,) = [line for line in lines if line.startswith("note")]
    assert "faq/1" in note
    assert "deploy" in note
