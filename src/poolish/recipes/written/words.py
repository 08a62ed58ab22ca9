"""What may stand in a recipe file: keys, built-in steps and their options.

Files are read by these tables (``reading``), and described by them to editors (``json_schema``).
"""

from __future__ import annotations

VERSION = 1

TOP_KEYS = ("name", "seed", "total", "unit", "tokens", "instructions", "version", "$schema")
INGREDIENT_KEYS = ("ingredient", "source", "where", "take", "weight", "pick", "on_short")
STEP_KEYS = ("step", "use", "where", "version")
