"""Tests of poolish.expressions."""
