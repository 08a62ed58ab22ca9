"""Mergeable statistics of columns, distances between two samples, drift and outliers."""
