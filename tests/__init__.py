"""The tests; their folders mirror src/poolish."""
