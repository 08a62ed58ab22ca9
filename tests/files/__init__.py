"""Tests of poolish.files."""
