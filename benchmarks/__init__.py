"""Poolish against its peers; ``run`` measures all, ``harness`` says how."""
