"""``{"x0": 4, "x1": 3.5}`` to one row of the model, and its class back as a number."""


class Preprocess:
    """Around ``model.predict``, which the engine calls."""

    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        missing = [name for name in ("x0", "x1") if name not in body]
        if missing:
            raise ValueError(f"send {' and '.join(missing)}, a number")
        return [[body["x0"], body["x1"]]]

    def postprocess(self, data, state, collect_custom_statistics_fn=None):
        return {"y": int(data[0])}
