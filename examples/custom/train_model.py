"""Make a model of one's own kind, the mean of each class in an ``.npz`` file, and register it with ClearML."""

from pathlib import Path

import numpy as np
from clearml import OutputModel, Task

task = Task.init(project_name="serving examples", task_name="train custom", output_uri=True)

random = np.random.default_rng(0)
clouds = {"left": random.normal((-2, 0), 1, (100, 2)), "right": random.normal((2, 0), 1, (100, 2))}

path = Path("custom-model.npz")
np.savez(path, **{name: points.mean(axis=0) for name, points in clouds.items()})
OutputModel(task=task, name="custom example", framework="Custom").update_weights(
    str(path), auto_delete_file=False, async_enable=False
)
task.close()
