"""Measures of one flower or of many in, the probabilities of each one's kinds out; held to pydantic models.

The models are the endpoint's schema in ``/openapi.json``, and say what is wrong with a body that does not fit.
"""

from pydantic import BaseModel, Field


class Flowers(BaseModel):
    """Rows of sepal length, sepal width, petal length, petal width in cm."""

    flowers: list[tuple[float, float, float, float]] = Field(min_length=1, max_length=1000)


class Kinds(BaseModel):
    """For each row the probabilities of setosa, versicolor, virginica."""

    kinds: list[list[float]]


class Preprocess:
    """Around ``Booster.predict``, which takes rows."""

    def preprocess(self, body: Flowers, state, collect_custom_statistics_fn=None):
        return body.flowers

    def postprocess(self, data, state, collect_custom_statistics_fn=None) -> Kinds:
        return {"kinds": data.round(4).tolist()}
