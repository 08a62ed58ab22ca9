"""What good data is: suites of checks, their verdicts, and the guards that ask them."""
