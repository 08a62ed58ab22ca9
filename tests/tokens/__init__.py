"""Tests of the token streams."""
