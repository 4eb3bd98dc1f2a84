"""Runs beside a Triton: keeps its model repository and its loaded models at what the serving Task wants."""
