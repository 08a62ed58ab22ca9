"""What happens when a sample, a source or a whole batch fails: fault policies, retries, circuit breakers."""
