"""Registers a bundle in ClearML: one Task that says how it was made, one model with metadata, plots and its origin.

Called by ``triton-gateway optimize --register``. The one file of ``deploy/bundles`` that imports clearml. The Task is
of type "optimizer"; the original is connected to it as an input model, so that ClearML's lineage leads from the served
bundle to where its weights came from.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bundles.pack import manifest
from deploy.tools.errors import DeployError
from gateway.errors import ArtifactCorrupt
from gateway.registry import manifest as judged
from gateway.registry.cache import ArtifactCache
from gateway.registry.clearml import ClearMLRegistry
from gateway.spec import decode_model

_MODEL_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Registered:
    """The ids of what was made."""

    task_id: str
    model_id: str


def fetch_source(model_id: str, folder: Path) -> Path:
    """Download a ClearML model that is named as the original into the empty ``folder``; return where its files lie.

    Not with the SDK's ``get_local_copy``: it finds unpacked models again by their address, also when other bytes lie
    there now. Raises ``DeployError``.
    """
    with _failing_clearly(f"model {model_id} cannot be fetched"), contextlib.redirect_stdout(sys.stderr):
        registry = ClearMLRegistry()
        return ArtifactCache(folder, registry).model(decode_model(registry.model(model_id)))


def is_model_id(given: str) -> bool:
    """Say whether ``given`` has the form of a ClearML id."""
    return _MODEL_ID.fullmatch(given) is not None


def register(
    bundle: Path, values: Mapping[str, Any], *, project: str, name: str, tags: Sequence[str], source: str
) -> Registered:
    """Upload the bundle and publish it. ``source`` is what the user gave: a folder, a hub name or a ClearML model id.

    Raises ``DeployError`` when the bundle is not what its manifest says, and when ClearML refuses or cannot be reached.
    """
    from clearml import InputModel, OutputModel, Task

    try:
        judged.check(bundle, is_used=lambda _: True)
    except ArtifactCorrupt as error:
        raise DeployError(f"the bundle is not registered: {error.message}", hint=error.hint or "") from error
    # The SDK would fork a process that reports; here threads of torch and ONNX Runtime may hold locks, which a fork
    # takes over for ever: seen to hang. There is no setting by environment.
    Task._report_subprocess_enabled = False  # noqa: SLF001
    with _failing_clearly("the bundle cannot be registered"), contextlib.redirect_stdout(sys.stderr):
        task = Task.init(
            project_name=project, task_name=f"optimize {name}", task_type=Task.TaskTypes.optimizer,
            reuse_last_task_id=False, output_uri=True, auto_connect_arg_parser=False, auto_connect_frameworks=False,
            auto_resource_monitoring=False, auto_connect_streams=False,
        )  # fmt: skip
        try:
            model_id = _fill(task, InputModel, OutputModel, bundle, values, name=name, tags=tags, source=source)
            task.flush(wait_for_uploads=True)
        except BaseException:
            task.mark_failed(status_reason="the bundle could not be uploaded")
            raise
        finally:
            task.close()
        return Registered(str(task.id), model_id)


def _fill(
    task: Any, input_model: Any, output_model: Any, bundle: Path, values: Mapping[str, Any], *, name: str,
    tags: Sequence[str], source: str,
) -> str:  # fmt: skip
    task.add_tags(["optimized", *tags])
    task.set_parameters({f"optimize/{key}": str(value) for key, value in values["arguments"].items()})
    task.connect_configuration({k: v for k, v in values.items() if k != "files"}, name="manifest")
    origin = (
        input_model(model_id=source)
        if is_model_id(source)
        else input_model.import_model(
            weights_url=_address(source), name=f"source of {name}", framework="PyTorch",
            tags=["source", str(values["source"]["digest"])[:12]],
        )
    )  # fmt: skip
    task.connect(origin, name="source")
    logger = task.get_logger()
    for row in values["parity"]:
        logger.report_single_value(f"mean cosine, {row['candidate']}", row["mean_cosine"])
    if values["chosen"]["times_pytorch"]:
        logger.report_single_value("times as fast as PyTorch", values["chosen"]["times_pytorch"])
    logger.report_image("report", "accuracy and speed", local_path=str(bundle / "report.png"))
    logger.report_text((bundle / "report.md").read_text(encoding="utf-8"), print_console=False)
    model = output_model(
        task=task, name=name, framework="ONNX", tags=["optimized", values["chosen"]["candidate"], *tags]
    )
    model.update_weights_package(weights_path=str(bundle), auto_delete_file=False, async_enable=False)
    model.set_all_metadata({key: {"value": value, "type": "str"} for key, value in manifest.short(values).items()})
    _report(model, bundle, values, str(logger.get_default_upload_destination()))
    model.publish()
    return str(model.id)


def _report(model: Any, bundle: Path, values: Mapping[str, Any], destination: str) -> None:
    """Report tables and picture to the model and wait until the server has them: it takes none once it is published."""
    for title, rows in _tables(values).items():
        model.report_table(title, "candidates", iteration=0, table_plot=rows)
    # the SDK reports in the background, and has neither a call that waits for a model's reports nor one for pictures
    reporter = model._reporter  # noqa: SLF001
    reporter.report_image_and_upload(
        "report", "accuracy and speed", iter=0, path=str(bundle / "report.png"), upload_uri=destination
    )
    reporter.stop()


def _tables(values: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return what the model itself shows in ClearML: accuracy and speed, each with its header."""
    columns = ("candidate", "mean_cosine", "min_cosine", "max_difference", "decisions", "shift", "neighbours")
    accuracy = [list(columns), *([_shown(row[name]) for name in columns] for row in values["parity"])]
    if not values["speed"]:
        return {"accuracy": accuracy}
    engines = list(values["speed"][0]["ms"])
    cells = [name for name in values["speed"][0] if name != "ms"]
    speed = [
        [*cells, *(f"{name}, ms" for name in engines)],
        *([*(str(row[name]) for name in cells), *(_shown(row["ms"].get(name)) for name in engines)]
          for row in values["speed"]),
    ]  # fmt: skip
    return {"accuracy": accuracy, "speed": speed}


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "–" if value is None else str(value)


def _address(source: str) -> str:
    folder = Path(source).expanduser()
    return folder.resolve().as_uri() if folder.is_dir() else f"https://huggingface.co/{source}"


@contextlib.contextmanager
def _failing_clearly(what: str) -> Any:
    try:
        yield
    except DeployError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise DeployError(
            f"{what}: {reason}",
            hint="CLEARML_API_HOST and its keys (or clearml.conf) name the server; `source .triton-gateway/env` sets "
            "those of `triton-gateway up`",
        ) from error
