"""What every test shares: how Hypothesis runs, and that Ctrl-C means something to the programs it starts."""

import signal

from hypothesis import settings

# The machines that run this are shared and slow at times: an example may take as long as it takes.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")

# A shell starts what runs in the background with SIGINT ignored, and so would be every program that a test starts and
# then ends like with Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
