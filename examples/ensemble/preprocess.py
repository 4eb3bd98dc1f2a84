"""Several models, one answer: the mean of what XGBoost and LightGBM say about a flower."""

from concurrent.futures import ThreadPoolExecutor

NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width")


class Preprocess:
    """Asks both at the same time, from two threads."""

    def load(self, local_file_name):
        self.threads = ThreadPoolExecutor(2)

    def process(self, data, state, collect_custom_statistics_fn=None):
        if any(name not in data for name in NAMES):
            raise ValueError(f"send {', '.join(NAMES)} in cm")
        row = [data[name] for name in NAMES]
        one = self.threads.submit(self.send_request, "xgboost-example", data=data)
        two = self.threads.submit(self.send_request, "lightgbm-example", data={"flowers": [row]})
        trees, light = one.result(), two.result()
        if trees is None or light is None:
            raise RuntimeError("a model of the ensemble did not answer")
        mean = {kind: (p + q) / 2 for (kind, p), q in zip(trees.items(), light["kinds"][0], strict=True)}
        return {"kind": max(mean, key=mean.get), "probabilities": mean}

    def unload(self):
        self.threads.shutdown()
