"""A model no engine knows: ``load`` reads it, ``process`` runs it."""

import numpy as np


class Preprocess:
    """The nearest mean; whatever Python can do may stand here."""

    def load(self, local_file_name):
        with np.load(local_file_name) as file:
            self.means = dict(file)

    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        point = body.get("point")
        if not isinstance(point, list) or len(point) != 2:
            raise ValueError("send point, two numbers")
        return np.asarray(point, dtype=float)

    def process(self, data, state, collect_custom_statistics_fn=None):
        return {name: float(np.linalg.norm(data - mean)) for name, mean in self.means.items()}

    def postprocess(self, data, state, collect_custom_statistics_fn=None):
        if collect_custom_statistics_fn:
            collect_custom_statistics_fn({"distance": min(data.values())})
        return {"class": min(data, key=data.get), "distances": data}
