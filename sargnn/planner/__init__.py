"""What a run will hold and send, known before it is launched."""
