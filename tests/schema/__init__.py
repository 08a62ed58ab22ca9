"""Tests of poolish.schema."""
