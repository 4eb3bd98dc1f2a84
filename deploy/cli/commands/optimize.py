"""``triton-gateway optimize``: make the fastest bundle of a Hugging Face model that still gives the same answers."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from deploy.tools.terminal import Terminal


@click.command(
    name="optimize",
    epilog="docs/models.md#optimize explains every figure.",
)
@click.argument("model")
@click.option("--task", default="auto", show_default=True, help="The model's task, if its files do not say it.")
@click.option("--target", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
              help="`gpu` writes the configuration for NVIDIA's container. It is checked but was not measured on a "
              "GPU.")  # fmt: skip
@click.option("--candidate", default="", metavar="NAME", help="Try only this candidate, for example openvino-bf16.")
@click.option("--latency", is_flag=True, help="Choose the best for one request at a time, on all cores, instead of for "
              "many requests at once, with up to four instances.")  # fmt: skip
@click.option("--samples", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="File with your own texts: one per line, or one JSON request body per line.  [default: built-in "
              "texts]")  # fmt: skip
@click.option("--tokenizer", "reads", type=click.Choice(["transformers", "file"]), default="transformers",
              show_default=True, help="Which tokenization to follow if the transformers library reads tokenizer.json "
              "differently from what the file says: the library's or the file's.")  # fmt: skip
@click.option("--accept", default="", metavar="REASON",
              help="Accept the fastest candidate even if it is beyond the tolerance, and record this reason. Wrong "
              "answers (tokens, labels, lengths, mask) are never accepted.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), default=Path("optimized"),
              show_default=True, envvar="TRITON_GATEWAY_OPTIMIZE_DIR", show_envvar=True,
              help="Folder for bundles. Nothing else is left there.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Measure only a few cells of the speed table.")
@click.option("--name", default="", help="Name of the bundle.  [default: the model's name]")
@click.option("--trust-remote-code", "trusts_code", is_flag=True,
              help="Run the Python code that the model brings, with your rights. Read that code first.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str, task: str, target: str, candidate: str, latency: bool, samples: Path | None,
    reads: str, accept: str, output: Path, quick: bool, name: str, trusts_code: bool, as_json: bool,
) -> int:  # fmt: skip
    """Make the fastest bundle of MODEL that still answers correctly: try every engine and precision of this CPU.

    MODEL is a folder, a Hugging Face hub name, or the id of a ClearML model. The command exports it, compares the
    answers of each candidate with the original's, and measures the speed.

    The bundle holds the model, its tokenizer and configuration, samples with expected answers for the gateway's warm-up
    check, and a manifest: accuracy, speed, versions, arguments, hashes. `triton-gateway deploy BUNDLE` serves it.

    \b
    Examples:
      triton-gateway optimize ./my-model
      triton-gateway optimize ./my-model --latency --samples my-texts.txt
      triton-gateway optimize sentence-transformers/all-MiniLM-L6-v2 --name minilm
      triton-gateway optimize ./my-model --candidate openvino-bf16 --accept "checked: -0.1 % F1"
    """
    from deploy.bundles.options import Options
    from deploy.bundles.run import optimize

    screen = Terminal(sys.stderr)
    outcome = optimize(
        Options(
            model=model, output=output.absolute(), task=task, candidate=candidate,
            target=target, load="latency" if latency else "throughput", reads=reads,  # type: ignore[arg-type]
            samples=samples, accept=accept.strip(), name=name, is_quick=quick, trusts_code=trusts_code,
        ),
        screen.say, lambda text: screen.live(text, topic=text),
    )  # fmt: skip
    screen.say(f"bundle: {outcome.bundle}")
    if as_json:
        values = {"bundle": str(outcome.bundle), **outcome.manifest}
        click.echo(json.dumps(values, indent=2, ensure_ascii=False, default=str))
    else:
        click.echo(f"serve it:\n  triton-gateway deploy {shlex.quote(str(outcome.bundle))}")
    return 0
