"""Tests of poolish.recipes."""
