"""Train a LightGBM classifier on the iris flowers and register it with ClearML."""

from pathlib import Path

import lightgbm
from clearml import OutputModel, Task
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

task = Task.init(
    project_name="serving examples", task_name="train lightgbm", output_uri=True, auto_connect_frameworks=False
)

features, labels = load_iris(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(features, labels, test_size=0.25, random_state=100)
parameters = {"objective": "multiclass", "num_class": 3, "num_leaves": 8, "verbose": -1, "seed": 0}
model = lightgbm.train(parameters, lightgbm.Dataset(train_x, train_y), num_boost_round=40)
print(f"accuracy on held-out flowers: {(model.predict(test_x).argmax(axis=1) == test_y).mean():.3f}")

path = Path("lightgbm-model.txt")
model.save_model(path)
OutputModel(task=task, name="lightgbm example", framework="LightGBM").update_weights(
    str(path), auto_delete_file=False, async_enable=False
)
task.close()
