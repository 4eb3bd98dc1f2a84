"""One endpoint after the other: the class of a point decides which flower is asked about."""

FLOWERS = {
    0: {"sepal_length": 5.1, "sepal_width": 3.5, "petal_length": 1.4, "petal_width": 0.2},
    1: {"sepal_length": 6.3, "sepal_width": 3.3, "petal_length": 6.0, "petal_width": 2.5},
}


class Preprocess:
    """Calls other endpoints with ``send_request``; the gateway answers those it serves without a network in between."""

    def process(self, data, state, collect_custom_statistics_fn=None):
        point = self.send_request(endpoint="sklearn-example", data=data)
        if point is None:
            raise ValueError("sklearn-example refused: send x0 and x1")
        flower = self.send_request(endpoint="xgboost-example", data=FLOWERS[point["y"]])
        return {"class": point["y"], "flower": max(flower, key=flower.get)}
