"""Tests of poolish.guards."""
