"""What the fork server imports once, so that every worker starts with it. No parallel region may run here:
GNU OpenMP does not survive a fork."""

import sargnn.launch.worker  # noqa: F401
