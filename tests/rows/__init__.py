"""Tests of poolish.rows."""
