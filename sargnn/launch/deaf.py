"""Loaded first by the fork server: signals to the whole process group are for the launching process and the workers.

It ends when the launching process does, whatever happens to that.
"""

import signal

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
