"""What training computes on one number of workers and on another, recorded and compared."""
