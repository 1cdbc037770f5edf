"""The fork server loads this first, so that it ignores signals to the whole process group: those are for the launching process
and the workers. It ends when the launching process does, however that ends.
"""

import signal

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
