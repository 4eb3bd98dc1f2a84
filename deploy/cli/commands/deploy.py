"""``triton-gateway deploy``: turn a model's folder into an endpoint that answers, with one command."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from deploy.cli.commands import _options
from deploy.cli.commands._options import OpenRegistry, gateway_options, registry_options
from deploy.laptop.state_dir import uses_no_clearml
from deploy.tools.errors import DeployError
from deploy.tools.terminal import Terminal


@click.command(name="deploy")
@click.argument("model")
@click.option("--endpoint", default="", metavar="NAME[/VERSION]",
              help="Name of the endpoint.  [default: the model's name, and the next free version]")  # fmt: skip
@click.option("--task", default="auto", show_default=True, help="The model's task, if its files do not say it.")
@click.option("--tokenizer", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Folder with the tokenizer.json and config.json of an ONNX file.  [default: beside it]")  # fmt: skip
@click.option("--trust-remote-code", "trusts_code", is_flag=True,
              help="Run the Python code that the model brings, with your rights. Read that code first.")  # fmt: skip
@click.option(
    "--project", default="triton-gateway", show_default=True, help="ClearML project for the registered model."
)
@click.option("--name", default="", help="Name of the registered model.  [default: the model's name]")
@gateway_options
@registry_options
def command(
    model: str, endpoint: str, task: str, tokenizer: Path | None, trusts_code: bool, project: str, name: str,
    gateway: str, open_registry: OpenRegistry,
) -> int:  # fmt: skip
    """Serve MODEL as an endpoint: export it, check its answers, register it, wait until it is served, and ask it.

    MODEL is one of: the folder of a Hugging Face or sentence-transformers model; a Hugging Face hub name; an ONNX file
    with its tokenizer beside it; a bundle made by `optimize`; the id of a ClearML model; a scikit-learn, XGBoost or
    LightGBM file.

    Only an export needs torch (`pip install ".[bundles]"`); it makes exact ONNX Runtime. For a faster
    bundle, run `optimize` first, and deploy its folder. Each change to the registry is printed as the `clearml-serving`
    command that does the same. The endpoint is added last; a bundle stays in the state directory of `up`, else in
    ./optimized.

    \b
    Examples:
      triton-gateway deploy ./my-model
      triton-gateway deploy ./my-model --endpoint sentiment
      triton-gateway deploy ./export/model.onnx --tokenizer ./my-model --endpoint faq/2
    """
    terminal = Terminal(sys.stderr)
    try:
        from deploy.bundles import prerequisites
        from deploy.bundles.model_kinds import recognise
        from deploy.cli import deploying

        given = recognise(model, task=task, tokenizer=tokenizer)
        wanted_name, version = deploying.name_and_version(endpoint.strip("/") or given.name)
        prerequisites.check(given, trusts_code=trusts_code)
        state = _options.chosen_state_dir()
        has_up = state.env_file.exists()
        if not has_up and uses_no_clearml(os.environ):
            raise DeployError(
                "no ClearML server is configured, and no `up` was started in this folder",
                hint=f"run `triton-gateway up --model {shlex.quote(model)}`, which starts everything here and serves "
                "the model, or set CLEARML_API_HOST and its keys",
            )
        store = open_registry()
        terminal.say(f"ClearML server: {store.server}")
        home = state.root / "bundles" if has_up else Path("optimized")
        name = name or (given.name if len(given.name) >= 3 else f"model-{given.name}")  # ClearML takes no shorter one
        deploying.Deployment(
            given=given, endpoint=wanted_name, version=version, output=home.absolute(), gateway=gateway,
            project=project, name=name, trusts_code=trusts_code, store=store, screen=terminal, tell=click.echo,
            environ=dict(os.environ),
        ).run()  # fmt: skip
    except KeyboardInterrupt:
        terminal.say("stopped")
        raise
    return 0
