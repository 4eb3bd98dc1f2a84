"""Train a logistic regression on two clouds of points and register it with ClearML."""

from pathlib import Path

import joblib
from clearml import OutputModel, Task
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression

task = Task.init(project_name="serving examples", task_name="train sklearn", output_uri=True)

points, labels = make_blobs(n_samples=200, centers=[(0.0, 0.0), (4.0, 4.0)], random_state=1)
model = LogisticRegression().fit(points, labels)
print(f"accuracy on the training points: {model.score(points, labels):.3f}")

path = Path("sklearn-model.pkl")
joblib.dump(model, path)
OutputModel(task=task, name="sklearn example", framework="ScikitLearn").update_weights(
    str(path), auto_delete_file=False, async_enable=False
)
task.close()
