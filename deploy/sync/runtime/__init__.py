"""Programs copied into the model repository: they run inside Triton's stub processes, never in model sync.

``model_folder/build`` copies them; ``deploy/bundles`` runs the same ones when it judges a model. They must import
nothing of ours, and never fail a request because of another one.
"""
