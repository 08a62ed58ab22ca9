"""Datasets that look at other datasets: one module per view holds the view by number and its rows by id."""
