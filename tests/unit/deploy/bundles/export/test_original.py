"""What is said of a model that cannot be exported: the real reason, in one sentence."""

from __future__ import annotations

import pytest

from deploy.bundles.export.original import not_exported

ADVICE = "Failed to export the model with torch.export.\n- Modify the model code\n\n## Exception summary\n\n"
PLACE = (
    'The following call raised this error:\n  File "/site/transformers/modeling_long.py", line 707, in _chunk\n    x\n'
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"{ADVICE}<class 'torch.fx.symbolic_shapes.GuardOnDataDependentSymNode'>: Could not guard on "
            f"data-dependent expression 16*u1 < 32\n\n{PLACE}",
            "the sizes of its tensors depend on the values in them, which a graph cannot do (modeling_long.py, "
            "line 707, in _chunk)",
        ),
        (
            f"{ADVICE}<class 'ValueError'>: Found the following conflicts between user-specified ranges and inferred "
            "ranges from model tracing:\n- Received user-specified dim hint Dim.DYNAMIC(min=None, max=None), but "
            "tracing inferred a static shape of 18 for dimension inputs['input_ids'].shape[1].",
            "its code computes with the length in plain Python, so the graph would accept only a length of 18",
        ),
        (f"{ADVICE}<class 'AttributeError'>: no attribute x\n", "AttributeError: no attribute x"),
        ("", "RuntimeError"),
    ],
)
def test_the_exporters_pages_become_one_reason(text, says):
    """Not its advice, not a heading whose text stands below, and never nothing."""
    told = not_exported(RuntimeError(text))
    assert told.message == f"torch cannot export this model to ONNX: {says}"
    assert told.hint
