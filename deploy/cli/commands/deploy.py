"""``triton-gateway deploy``: turn a model's folder into an endpoint that answers, with one command."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from deploy.cli.commands._options import (
    OpenRegistry,
    chosen_state_dir,
    gateway_options,
    names_clearml,
    names_state_dir,
    refuse_gateway_of_another,
    registry_options,
    who,
)
from deploy.cli.terminal import Terminal
from deploy.laptop.relay import nothing_registered
from deploy.laptop.state_dir import uses_no_clearml
from deploy.tools.clearml_serving import Tensor
from deploy.tools.errors import DeployError


@click.command(name="deploy")
@click.argument("model")
@click.option("--endpoint", default="", metavar="NAME[/VERSION]",
              help="Name of the endpoint.  [default: the model's name, and the next free version]")  # fmt: skip
@click.option("--task", default="auto", show_default=True, help="The model's task, if its files do not say it.")
@click.option("--tokenizer", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Folder with the tokenizer.json and config.json of an ONNX file.  [default: beside it]")  # fmt: skip
@click.option("--input", "inputs", multiple=True, metavar="NAME:TYPE:SIZES",
              help="An input tensor of a TorchScript model, e.g. INPUT__0:float32:-1,4. May be repeated.")  # fmt: skip
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="NAME:TYPE:SIZES",
    help="An output tensor of a TorchScript model. May be repeated.",
)
@click.option("--all-candidates", "tries_all", is_flag=True,
              help="Try every engine and precision of this CPU and use the fastest one that answers correctly (takes "
              "minutes).")  # fmt: skip
@click.option("--trust-remote-code", "trusts_code", is_flag=True,
              help="Run the Python code that the model brings, with your rights. Read that code first.")  # fmt: skip
@click.option(
    "--project", default="triton-gateway", show_default=True, help="ClearML project for the registered model."
)
@click.option("--name", default="", help="Name of the registered model.  [default: the model's name]")
@click.option("--bundles", type=click.Path(path_type=Path, file_okay=False), envvar="TRITON_GATEWAY_BUNDLES_DIR",
              show_envvar=True,
              help="Folder for bundles.  [default: inside the state directory of `up`, else ./optimized]")  # fmt: skip
@gateway_options
@registry_options
def command(
    model: str, endpoint: str, task: str, tokenizer: Path | None, inputs: tuple[str, ...], outputs: tuple[str, ...],
    tries_all: bool, trusts_code: bool, project: str, name: str, bundles: Path | None,
    gateway: str, open_registry: OpenRegistry,
) -> int:  # fmt: skip
    """Serve MODEL as an endpoint: export it, check its answers, register it, wait until it is served, and ask it.

    MODEL is one of: the folder of a Hugging Face or sentence-transformers model; a Hugging Face hub name; an ONNX file
    with its tokenizer beside it; a bundle made by `optimize`; the id of a ClearML model; a TorchScript, scikit-learn,
    XGBoost or LightGBM file.

    Only an export needs torch (`pip install "triton-gateway[bundles]"`). Each change to the registry is printed as the
    `clearml-serving` command that does the same. Ctrl-C undoes what was registered.

    \b
    Examples:
      triton-gateway deploy ./my-model
      triton-gateway deploy ./my-model --endpoint sentiment
      triton-gateway deploy ./export/model.onnx --tokenizer ./my-model --endpoint faq/2
    """
    terminal = Terminal(sys.stderr)
    with nothing_registered(terminal):
        from deploy.bundles import prerequisites
        from deploy.bundles.model_kinds import recognise
        from deploy.cli.deploying import Deployment, Wanted, name_and_version, registered_name

        given = recognise(model, task=task, tokenizer=tokenizer)
        if given.kind == "torchscript" and not (inputs and outputs):
            raise DeployError(
                f"{model} is a TorchScript file, which does not describe its tensors",
                hint="describe them, including the batch: "
                "--input INPUT__0:float32:-1,4 --output OUTPUT__0:float32:-1,2",
            )
        wanted_name, version = name_and_version(endpoint.strip("/") or given.name)
        prerequisites.check(given, tries_all=tries_all, trusts_code=trusts_code)
        state = chosen_state_dir()
        if not state.env_file.exists() and uses_no_clearml(os.environ):
            raise DeployError(
                "no ClearML server is configured, and no `up` was started in this folder",
                hint=f"run `triton-gateway up --model {shlex.quote(model)}`, which starts everything here and serves "
                "the model, or set CLEARML_API_HOST and its keys",
            )
        refuse_gateway_of_another(gateway)
        store = open_registry()
        if not names_state_dir():
            terminal.say(f"ClearML server: {store.server} (named by {names_clearml()})")
        home = state.root / "bundles" if state.env_file.exists() else Path("optimized").absolute()
        wanted = Wanted(
            given, wanted_name, version, (bundles or home).absolute(), gateway, state.sync_status, project,
            name or registered_name(given.name), who(), tuple(map(_tensor, inputs)), tuple(map(_tensor, outputs)),
            trusts_code=trusts_code, tries_all=tries_all,
        )  # fmt: skip
        deployment = Deployment(wanted, store, terminal, click.echo, dict(os.environ))
    deployment.run()
    return 0


def _tensor(text: str) -> Tensor:
    try:
        name, kind, sizes = text.split(":")
        return Tensor(name, kind, tuple(int(size) for size in sizes.split(",")))
    except ValueError:
        raise DeployError(f"{text!r} is not NAME:TYPE:SIZES", hint="for instance INPUT__0:float32:-1,4") from None
