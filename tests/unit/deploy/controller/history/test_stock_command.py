"""The stock command for an endpoint or rule of the serving Task; ``test_history`` runs one with the stock tool."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

from deploy.controller.history.stock_command import adding, adding_rule
from gateway.spec import ArtifactRef, EndpointSpec, MonitoringSpec, TensorSpec


def test_everything_that_was_told_on_the_command_line_is_told_again_and_files_are_named() -> None:
    """The texts of ``--aux-config`` files, and code, cannot be on a command line."""
    code = ArtifactRef("py_code_e_2", "http://files/p.py", None, is_archive=False)
    one = EndpointSpec(
        "e/2", "e", "2", "triton", "m", preprocess=code, auxiliary_pbtxt="backend: 'x'",
        inputs=(TensorSpec("x", "int64", (-1, 4)), TensorSpec("y z", "int64", (-1,))),
    )  # fmt: skip
    assert adding("t", one) == (
        "clearml-serving --id t model add --engine triton --endpoint e --version 2 --model-id m --input-name x 'y z' "
        "--input-type int64 int64 --input-size '[-1, 4]' '[-1]' --aux-config CONFIG --preprocess CODE"
        "  # CONFIG: the config.pbtxt that it had; CODE: http://files/p.py"
    )


def test_pairs_keep_their_values() -> None:
    nested = '{"a": {"0": {"b": 4, "c": "GPU_1"}}, "d": [1, 2], "e": true, "f": "two words"}'
    one = EndpointSpec("e", "e", "", "triton", auxiliary_json=nested, options=(("task", "fill-mask"),))
    assert adding("t", one).endswith(
        "--endpoint e --aux-config a.0.b=4 a.0.c=GPU_1 'd=[1, 2]' e=true 'f=\"two words\"' gateway.task=fill-mask"
    )


def test_a_rule_is_told_with_what_it_selects() -> None:
    template = EndpointSpec("r", "r", "", "sklearn")
    rule = MonitoringSpec(
        "r", "sklearn", "p q", "n", ("a", "b"), only_published=True, max_versions=3, template=template
    )
    assert adding_rule("t", rule) == (
        "clearml-serving --id t model auto-update --engine sklearn --endpoint r --max-versions 3 --name n "
        "--project 'p q' --tags a b --published"
    )
