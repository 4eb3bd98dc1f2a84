"""Measures of a flower in, the probabilities of its kinds out."""

import xgboost

NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width")
KINDS = ("setosa", "versicolor", "virginica")


class Preprocess:
    """Around ``Booster.predict``, which takes a DMatrix."""

    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        missing = [name for name in NAMES if name not in body]
        if missing:
            raise ValueError(f"send {', '.join(missing)} in cm")
        return xgboost.DMatrix([[float(body[name]) for name in NAMES]])

    def postprocess(self, data, state, collect_custom_statistics_fn=None):
        return {kind: round(float(p), 4) for kind, p in zip(KINDS, data[0], strict=True)}
