"""Measures of one flower or of many in, the probabilities of each one's kinds out; bodies are held to a pydantic model.

Pydantic's error is a ``ValueError``: a body that does not fit is refused with the name of each wrong field.
"""

from pydantic import BaseModel, Field


class Flowers(BaseModel):
    """Rows of sepal length, sepal width, petal length, petal width in cm."""

    flowers: list[tuple[float, float, float, float]] = Field(min_length=1, max_length=1000)


class Preprocess:
    """Around ``Booster.predict``, which takes rows."""

    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        return Flowers.model_validate(body).flowers

    def postprocess(self, data, state, collect_custom_statistics_fn=None):
        return {"kinds": data.round(4).tolist()}
