"""Train gradient boosted trees on the iris flowers and register them with ClearML."""

from pathlib import Path

import xgboost
from clearml import OutputModel, Task
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

task = Task.init(
    project_name="serving examples", task_name="train xgboost", output_uri=True, auto_connect_frameworks=False
)

features, labels = load_iris(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(features, labels, test_size=0.25, random_state=100)
parameters = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "eta": 0.3, "seed": 0}
model = xgboost.train(parameters, xgboost.DMatrix(train_x, train_y), num_boost_round=20)
found = model.predict(xgboost.DMatrix(test_x)).argmax(axis=1)
print(f"accuracy on held-out flowers: {(found == test_y).mean():.3f}")

path = Path("xgboost-model.json")  # every version of XGBoost reads .json and .ubj
model.save_model(path)
OutputModel(task=task, name="xgboost example", framework="XGBoost").update_weights(
    str(path), auto_delete_file=False, async_enable=False
)
task.close()
