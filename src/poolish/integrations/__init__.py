"""Native in every trainer: one module per framework, each imported only by its own name.

``poolish.integrations.lightning``, ``.transformers``, ``.accelerate``, ``.trl`` and ``.jax``. Each needs the framework
it is named for; docs/trainers.md has a program for each of them, and for those that need no module: torchrun, Fabric
and torch's own DataLoader.
"""
